"""Pausing: the operator's word that remedies are to wait. Kept in the store, so that it outlives reboots."""

from __future__ import annotations

from vllm_supervisor import our_daemon
from vllm_supervisor.errors import ConfigError, no_such_service, nothing_applied
from vllm_supervisor.host import clock
from vllm_supervisor.paths import Paths
from vllm_supervisor.store import Happening, Kind, Pause, Store

ALL = ""


def pause(paths: Paths, name: str, by: str) -> Pause | None:
    """Have the daemon only watch a service, or `ALL` of them, from its next step on.

    Args:
        paths: where things are.
        name: of the service.
        by: user who wants it.

    Returns:
        The pause that there was already; None when it begins now.

    Raises:
        ConfigError: no such service is in force.
        StoreError: nothing was applied here yet, or the store cannot be written.
    """
    store = _store(paths, name)
    there = store.pauses().get(name)
    if there is None:
        now_us = clock.realtime_us()
        with store.transaction():
            store.put_pause(Pause(name, now_us, by))
            for service in [name] if name else store.services():
                store.add(Happening(now_us, service, Kind.PAUSED, why=f"by {by}, until it is resumed"))
        our_daemon.tell()
    store.close()
    return there


def resume(paths: Paths, name: str, by: str) -> bool:
    """End the pause of a service, or with `ALL` every pause; the daemon then answers what failed last.

    Returns:
        False when nothing was paused.

    Raises:
        ConfigError: no such service is in force, or all are paused and only one is to go on.
        StoreError: nothing was applied here yet, or the store cannot be written.
    """
    store = _store(paths, name)
    pauses = store.pauses()
    ended = [name] if name else list(pauses)
    if name and ALL in pauses:
        raise ConfigError(
            f"cannot resume {name!r} alone: every service is paused, by {pauses[ALL].by}",
            hint="vllm-supervisor resume --all",
        )
    if not pauses.keys() & ended:
        store.close()
        return False
    now_us = clock.realtime_us()
    with store.transaction():
        for service in ended:
            store.remove_pause(service)
        for service in store.services():
            if service in ended or ALL in ended:
                store.add(Happening(now_us, service, Kind.RESUMED, why=f"by {by}"))
    our_daemon.tell()
    store.close()
    return True


def _store(paths: Paths, name: str) -> Store:
    if not paths.store.exists():
        raise nothing_applied(paths.store)
    store = Store(paths.store)
    services = store.services()
    if name and name not in services:
        store.close()
        raise no_such_service("find", name, services)
    return store
