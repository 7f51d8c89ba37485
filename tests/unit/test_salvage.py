"""A store that is damaged on purpose, in every way a disk knows: kept aside, rebuilt, nothing forgotten in silence."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from dataclasses import replace

import pytest

from vllm_supervisor import damage, salvage, units
from vllm_supervisor.config import Service
from vllm_supervisor.errors import DamagedStoreError
from vllm_supervisor.paths import Paths
from vllm_supervisor.store import MIGRATIONS, AppliedService, Happening, Kind, LearnedCap, Pause, Store, Task, TaskKind

CAP = LearnedCap("a", "f1", {"max-num-seqs": 512}, 1, "run1", exhausted=False, reason="1024 did not fit", learned_us=7)
LEARNED = {"max-num-seqs": 256, "gpu-memory-utilization": 0.9, "max-model-len": 4096, "enforce-eager": True}
SERVICE = AppliedService("a", "vllm-a.service", '{"source": "/etc/x.yaml"}', "f1", 7)
ROWS = 400  # of history, over more than 20 pages
BEGAN_US = time.time_ns() // 1000 - ROWS  # what is older than a year is no loss


@pytest.fixture
def paths(tmp_path):
    for name in ("state", "units"):
        (tmp_path / name).mkdir()
    return Paths(
        config=tmp_path / "config.yaml", units=tmp_path / "units", state=tmp_path / "state", lock=tmp_path / "lock"
    )


def fill(paths, *, close=True, rows=ROWS):
    store = Store(paths.store)
    with store.transaction():
        store.put_service(SERVICE)
        store.put_cap(CAP)
        store.put_pause(Pause("a", 7, "root"))
        store.cursor = "s=1"
        for number in range(rows):
            store.add(Happening(BEGAN_US + number, "a", Kind.APPLIED, why=f"for the {number}th time, " + "x" * 200))
    if close:
        store.close()
    return store


def overwrite(path, place, data):
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def garbage(size):
    return os.urandom(size)


def test_a_sound_store_is_left_alone(paths):
    """Open or closed, with its log or without: no complaint, and nothing beside it."""
    store = fill(paths, close=False)
    assert damage.log_of(paths.store).stat().st_size > 0
    salvage.mend(paths, wait_s=0)
    with store.transaction():
        store.add(Happening(1, "a", Kind.APPLIED))
    salvage.mend(paths, wait_s=0)
    store.close()
    salvage.mend(paths, wait_s=0)

    assert {path.name for path in paths.state.iterdir()} <= {f"store.sqlite{end}" for end in ("", "-wal", "-shm")}


@pytest.mark.parametrize(
    ("place", "size", "least"),
    [
        pytest.param(0, 100, ROWS, id="header"),
        pytest.param(0, 4096, ROWS, id="first-page"),
        pytest.param(20 * 4096 + 100, 2000, ROWS - 40, id="middle-of-a-page"),
        pytest.param(25 * 4096, 3 * 4096, ROWS - 100, id="three-pages"),
    ],
)
def test_garbage_in_the_file(paths, place, size, least):
    """Every page but the damaged one is read; the services and what was learned are all there."""
    fill(paths)
    overwrite(paths.store, place, garbage(size))
    damaged = paths.store.read_bytes()

    store = salvage.opened(paths)

    assert store.services() == {"a": SERVICE}
    assert store.cap("a", "f1") == CAP
    assert store.cursor == "s=1"
    rows = store.history()
    assert least <= len(rows) - 1 <= ROWS
    assert (rows[-1].service, rows[-1].kind) == ("", Kind.STORE_DAMAGED)
    (aside,) = salvage.kept_aside(paths)
    assert aside.read_bytes() == damaged
    assert str(aside) in rows[-1].why
    assert damage.complaint(paths.store) == ""


@pytest.mark.parametrize(("rows", "least"), [(ROWS, ROWS / 5), (0, 1)], ids=["of-many-pages", "of-few-pages"])
def test_half_of_the_file_is_gone(paths, rows, least):
    """What was in the first half is there, also where tables begin in the second."""
    fill(paths, rows=rows)
    os.truncate(paths.store, paths.store.stat().st_size // 2)

    store = salvage.opened(paths)

    assert (store.services(), store.cap("a", "f1")) == ({"a": SERVICE}, CAP)
    assert len(store.history()) >= least


def killed(paths):
    """The files as they are after SIGKILL: the latest transactions are only in the log."""
    store = fill(paths, close=False)
    there = paths.state.with_name("copy")
    shutil.copytree(paths.state, there)
    store.close()
    shutil.rmtree(paths.state)
    there.rename(paths.state)


def test_a_log_of_garbage(paths):
    """Sqlite itself takes such a log for an empty one, and forgets what was in it without a word."""
    killed(paths)
    log = damage.log_of(paths.store)
    overwrite(log, 0, garbage(log.stat().st_size))

    store = salvage.opened(paths)

    assert "its write-ahead log begins with garbage" in store.history()[-1].why
    (aside,) = salvage.kept_aside(paths)
    assert damage.log_of(aside).stat().st_size > 0


def test_garbage_in_the_middle_of_the_log(paths):
    """What was committed before it is read, and the loss of the rest is told."""
    killed(paths)
    store = Store(paths.store)
    with store.transaction():
        store.put_cap(replace(CAP, values={"max-num-seqs": 256}))
    log = damage.log_of(paths.store)
    overwrite(log, log.stat().st_size // 2, garbage(6000))
    size = log.stat().st_size
    shutil.copy(log, there := log.with_name("log"))
    store.close()
    there.rename(log)
    assert log.stat().st_size == size

    assert "its write-ahead log has garbage before its end" in salvage.opened(paths).history()[-1].why


def test_an_emptied_file_beside_its_log(paths):
    """Sqlite itself would delete the log."""
    killed(paths)
    os.truncate(paths.store, 0)

    store = salvage.opened(paths)

    assert (store.services(), store.cap("a", "f1")) == ({"a": SERVICE}, CAP)


def test_a_row_that_nobody_wrote(paths):
    """Sqlite finds nothing wrong with a flipped bit in a text."""
    fill(paths)
    content = paths.store.read_bytes()
    assert content.count(b"for the 200th time") == 1
    overwrite(paths.store, content.index(b'{"why": "for the 200th time'), b"X")
    with pytest.raises(DamagedStoreError):
        Store(paths.store, read_only=True).history()

    assert len(salvage.opened(paths).history()) == ROWS - 1 + 1


def test_killed_while_it_is_put_in_place(paths, monkeypatch):
    """At each of its steps: the next time ends where the first would have, with the log of the damaged file kept."""
    killed(paths)
    overwrite(paths.store, 0, garbage(4096))
    original = {path.name: path.read_bytes() for path in paths.state.iterdir() if "shm" not in path.name}
    salvage._rebuild(paths, "test")
    place = salvage._rebuilt(paths.store)
    salvage._aside(paths.store, place.name.rpartition("-")[2]).hardlink_to(paths.store)

    store = salvage.opened(paths)

    (aside,) = salvage.kept_aside(paths)
    assert {f"store.sqlite{p.name.removeprefix(aside.name)}" for p in paths.state.glob("*damaged*")} >= set(original)
    assert aside.read_bytes() == original["store.sqlite"]
    assert damage.log_of(aside).read_bytes() == original["store.sqlite-wal"]
    assert [row.kind for row in store.history()].count(Kind.STORE_DAMAGED) == 1


@pytest.mark.parametrize("place", [0, 100], ids=["first-page", "header"])
def test_a_store_of_the_version_before_that_is_damaged(paths, place):
    """An upgrade and a bad disk at once: what was learned is read from the columns it was in."""
    with sqlite3.connect(paths.store) as db:
        db.executescript(f"{''.join(MIGRATIONS[:3])} PRAGMA user_version=3;")
        db.execute(f"INSERT INTO caps VALUES ('a', 'f1', 256, 1, 'run1', 0, 'why', {BEGAN_US}, 0.9, 4096, 1)")
    db.close()
    overwrite(paths.store, place, garbage(4096 - place))

    cap = salvage.opened(paths).cap("a", "f1")
    assert cap == replace(CAP, values=LEARNED, reason="why", learned_us=BEGAN_US)


def test_a_disk_that_damages_it_again_and_again(paths):
    """Some damaged files are kept, and not one each time."""
    for _ in range(salvage.KEPT + 3):
        fill(paths)
        overwrite(paths.store, 0, garbage(100))
        salvage.mend(paths, wait_s=0)

    assert len(salvage.kept_aside(paths)) == salvage.KEPT


def write_unit(paths, cap):
    service = Service.model_validate(
        {"name": "a", "model": "o/m", "executable": "/opt/vllm/bin/vllm", "source": paths.config}
    )
    print_ = units.fingerprint(service, None)
    host = units.Host(252, ("/usr/bin/vllm-supervisor",))
    text = units.render(service, cap, host, fingerprint=print_, after=[])
    (paths.units / "vllm-a.service").write_text(text)
    return print_


def test_what_a_lost_store_knew_is_read_from_the_units(paths):
    """It was removed, or emptied: what a unit was lowered to is known again, and the history says from where."""
    print_ = write_unit(paths, units.Cap(LEARNED, "512 did not fit"))
    paths.store.touch()

    store = salvage.opened(paths)
    salvage.mend(paths, wait_s=0)

    cap = store.cap("a", print_)
    assert (cap.values, cap.reason) == (LEARNED, "512 did not fit")
    assert [(row.service, row.kind) for row in store.history()] == [("a", Kind.RELEARNED)]
    assert salvage.not_in_force(paths) == ["a"]


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_cap_that_cannot_be_read_any_more(paths, forgotten):
    """It is taken from the unit, unless the operator had it forgotten, which the unit does not show yet."""
    print_ = write_unit(paths, units.Cap({"max-num-seqs": 256}, "512 did not fit"))
    store = fill(paths, close=False)
    with store.transaction():
        store.forget_caps("a")
        if forgotten:
            store.put_task(Task("a", TaskKind.START, "", 7))
    store.close()
    overwrite(paths.store, 0, garbage(100))

    cap = salvage.opened(paths).cap("a", print_)

    assert (cap is None) is forgotten
