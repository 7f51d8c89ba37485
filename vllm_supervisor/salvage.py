"""A store that was damaged or lost: kept aside, rebuilt from what can be read, and never forgotten in silence.

What a store knew stands in two other places: in the damaged file, row by row, and in the unit files, each of which
tells what it was lowered to. So an operator who deletes the store, or a disk that does, costs no learned value.

Rebuilding ends the same way wherever it is killed: once `store.sqlite.rebuilt-TIME` is there, it is carried on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from shutil import rmtree

from vllm_supervisor import damage, units
from vllm_supervisor.errors import DamagedStoreError, LockedError, StoreError
from vllm_supervisor.host import clock, files, log
from vllm_supervisor.judgement import VOICE
from vllm_supervisor.learned import Flag
from vllm_supervisor.paths import Paths
from vllm_supervisor.store import Happening, Kind, LearnedCap, Store

KEPT = 5
"""Damaged files that are kept; the oldest go first, so that a failing disk is not filled by them."""

_LOGS = ("-wal", "-shm")


def opened(paths: Paths, *, wait_s: float = 0.0) -> Store:
    """The store, mended if it must be.

    Raises:
        LockedError: another process of ours holds the lock for longer than that, and there is something to mend.
        StoreError: it cannot be opened, or there is no room to rebuild it.
    """
    mend(paths, wait_s=wait_s)
    return Store(paths.store)


def mend(paths: Paths, *, wait_s: float) -> None:
    """Rebuild a damaged store, and take over from the unit files what a lost one knew. Touches nothing else.

    Raises:
        LockedError: another process of ours holds the lock for longer than that, and there is something to mend.
        StoreError: the store cannot be looked at, or there is no room to rebuild it.
    """
    if paths.store.with_name(f"{paths.store.name}-journal").exists():
        with suppress(DamagedStoreError):
            Store(paths.store).close()  # its making was cut short, and a reader cannot undo what was half done
    if _rebuilt(paths.store) or damage.complaint(paths.store):
        with files.exclusive(paths.lock, timeout_s=wait_s):
            # Looked at again: another of our processes was quicker, or was just writing.
            if not _rebuilt(paths.store) and (what := damage.complaint(paths.store)):
                _rebuild(paths, what)
            if rebuilt := _rebuilt(paths.store):
                _put_in_place(paths, rebuilt)
    if texts := _not_in_force(paths):
        files.make_directory(paths.state, mode=0o700)
        store = Store(paths.store)
        with store.transaction():
            _relearn(store, texts)
        store.close()


def not_in_force(paths: Paths) -> list[str]:
    """Services whose unit of ours is there, and of which the store knows nothing, sorted.

    None are named while another process of ours is changing units: it may be removing them.

    Raises:
        StoreError: there is a store, and it cannot be read.
    """
    with suppress(LockedError), files.exclusive(paths.lock, timeout_s=0):
        return sorted(_not_in_force(paths))
    return []


def words(names: Sequence[str]) -> str:
    """What services that are not in force mean, as a sentence."""
    return f"not in force, and not remedied until `vllm-supervisor apply`: {', '.join(names)}"


def notices(paths: Paths) -> list[str]:
    """What people who look at the services should know of the store, a sentence each."""
    lost, aside = not_in_force(paths), kept_aside(paths)
    told = [words(lost)] if lost else []
    if aside:
        read = "`vllm-supervisor history` tells what was read from it"
        told += [f"{path} was the store until it was damaged: {read}" for path in aside]
    return told


def kept_aside(paths: Paths) -> list[Path]:
    """Damaged stores that nobody has removed yet, the oldest first."""
    found = paths.store.parent.glob(f"{paths.store.name}.damaged-*")
    return sorted(path for path in found if not path.name.endswith(_LOGS))


def shown_cap(paths: Paths, service: str, fingerprint: str) -> LearnedCap | None:
    """What the unit file of a service shows that was learned under a fingerprint, as a cap without a past."""
    text = files.read_text(paths.units / units.unit_name(service))
    known = _shown(service, text) if text else None
    return known if known and known.fingerprint == fingerprint else None


def _shown(service: str, text: str) -> LearnedCap | None:
    found = units.learned(text)
    if found is None:
        return None
    fingerprint, cap = found
    return LearnedCap(
        service,
        fingerprint,
        {flag: cap.values[flag] for flag in Flag if flag in cap.values},  # a newer version may have had more
        attempts=0,
        treated="",
        exhausted=False,
        reason=cap.reason,
        learned_us=clock.realtime_us(),
    )


def _ours(paths: Paths) -> dict[str, str]:
    """Text of every unit that this program wrote, by service."""
    texts = {path: files.read_text(path) or "" for path in sorted(paths.units.glob("vllm-*.service"))}
    return {units.service_name(path.name): text for path, text in texts.items() if units.header(text)}


def _not_in_force(paths: Paths) -> dict[str, str]:
    ours, known = _ours(paths), set[str]()
    if ours and paths.store.exists() and paths.store.stat().st_size:
        store = Store(paths.store, read_only=True)
        known = set(store.services())
        store.close()
    return {name: text for name, text in ours.items() if name not in known}


def _relearn(store: Store, texts: Mapping[str, str]) -> None:
    """Take over what unit files show that was learned, where the store knows nothing of it."""
    for name, text in texts.items():
        known = _shown(name, text)
        if known and store.cap(name, known.fingerprint) is None:
            store.put_cap(known)
            why = f"what was learned is taken over from {units.unit_name(name)}, since the store knew nothing of it"
            store.add(Happening(clock.realtime_us(), name, Kind.RELEARNED, why=f"{why}: {known.reason}"))


def _rebuilt(path: Path) -> Path | None:
    """A store that was rebuilt and is not in its place yet."""
    found = sorted(path.parent.glob(f"{path.name}.rebuilt-*"))
    return found[0] if found else None


def _aside(path: Path, stamp: str) -> Path:
    return path.with_name(f"{path.name}.damaged-{stamp}")


def _rebuild(paths: Paths, what: str) -> None:
    path, now_us = paths.store, clock.realtime_us()
    stamp = first = clock.stamp(now_us)
    again = count(2)
    while _aside(path, stamp).exists():
        stamp = f"{first}-{next(again)}"
    new, scratch = path.with_name(f"{path.name}.rebuilding"), path.with_name(f"{path.name}.scratch")
    try:
        for left in (new, *(new.with_name(f"{new.name}{log_}") for log_ in _LOGS)):
            left.unlink(missing_ok=True)
        rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        rows = damage.readable(path, scratch)
        rmtree(scratch)
        store = Store(new)
        with store.transaction():
            read = {table: sum(store.restore(table, row) for row in found) for table, found in rows.items()}
            # What was forgotten by hand, and not applied since, is still to be started anew.
            _relearn(store, {name: text for name, text in _ours(paths).items() if name not in store.tasks()})
            lost = sorted(_ours(paths).keys() - store.services().keys())
            why = _told(what, _aside(path, stamp), read, lost)
            store.add(Happening(now_us, "", Kind.STORE_DAMAGED, why=why))
        store.close()
        files.move(new, path.with_name(f"{path.name}.rebuilt-{stamp}"))
    except OSError as e:
        raise StoreError(f"cannot rebuild the damaged store {path}: {e.strerror}") from e
    priority, message_id = VOICE[Kind.STORE_DAMAGED]
    log.say(priority, why, message_id=message_id)


def _told(what: str, aside: Path, read: Mapping[str, int], lost: list[str]) -> str:
    rows = ", ".join(f"{table} {number}" for table, number in read.items() if number) or "none"
    gone = f"; no longer in force, until `vllm-supervisor apply`: {', '.join(lost)}" if lost else ""
    return f"the store was damaged ({what}), is kept as {aside}, and was rebuilt; rows read from it: {rows}{gone}"


def _put_in_place(paths: Paths, rebuilt: Path) -> None:
    """May be killed anywhere and called again."""
    path = paths.store
    aside = _aside(path, rebuilt.name.removeprefix(f"{path.name}.rebuilt-"))
    try:
        if path.exists() and not aside.exists():
            aside.hardlink_to(path)
        for log_ in _LOGS:
            there, target = path.with_name(f"{path.name}{log_}"), aside.with_name(f"{aside.name}{log_}")
            if target.exists():
                there.unlink(missing_ok=True)
            elif there.exists():
                there.rename(target)
        files.move(rebuilt, path)
        for old in kept_aside(paths)[:-KEPT]:
            for end in ("", *_LOGS):
                old.with_name(f"{old.name}{end}").unlink(missing_ok=True)
    except OSError as e:
        raise StoreError(f"cannot put the rebuilt store in its place: {e}") from e
