"""`vllm-supervisor forget`: drop what was learned of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vllm_supervisor.cli.options import require_root, say, service_argument
from vllm_supervisor.errors import no_such_service, nothing_applied

if TYPE_CHECKING:
    from vllm_supervisor.store import Store


@click.command("forget")
@service_argument()
def command(name: str) -> int:
    """Drop what was learned of a service; the next `apply` starts it at the declared value."""
    from vllm_supervisor.paths import Paths
    from vllm_supervisor.store import Store

    require_root()
    path = Paths().store
    if not path.exists():
        raise nothing_applied(path)
    store = Store(path)
    if name not in store.services():
        raise no_such_service("forget", name, store.services())
    if _forget(store, name):
        say(f"forgot what was learned of {name}; `vllm-supervisor apply` starts it at the declared value")
    else:
        say(f"nothing was learned of {name}")
    store.close()
    return 0


def _forget(store: Store, name: str) -> bool:
    """Drop the caps and promise a start, which a service that was given up needs although its unit stays the same."""
    from vllm_supervisor.host import clock
    from vllm_supervisor.store import Happening, Kind, Task, TaskKind

    now_us = clock.realtime_us()
    with store.transaction():
        if not store.forget_caps(name):
            return False
        store.put_task(Task(name, TaskKind.START, "", now_us))
        store.add(Happening(now_us, name, Kind.FORGOT, why="what was learned was dropped by hand"))
    return True
