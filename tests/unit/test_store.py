"""The store on a real file: what is committed is kept, what is not is not, and each thing once."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from vllm_supervisor.errors import DamagedStoreError, StoreError
from vllm_supervisor.learned import Flag
from vllm_supervisor.store import (
    HISTORY_ROWS,
    KEPT_US,
    MIGRATIONS,
    AppliedService,
    Happening,
    Kind,
    LearnedCap,
    Pause,
    Store,
    Task,
    TaskKind,
)

CAP = LearnedCap("a", "f1", {"max-num-seqs": 512}, 1, "run1", exhausted=False, reason="1024 did not fit", learned_us=7)
SERVICE = AppliedService("a", "vllm-a.service", "{}", "f1", 7)
LOWERED = Happening(7, "a", Kind.LOWERED, "run1", "why", rule="r", phase="warm-up", quote="q", tried=1024, to=512)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.sqlite"


def test_everything_comes_back_from_another_process_view(path):
    """What one connection commits, another reads as the same values."""
    store = Store(path)
    with store.transaction():
        store.put_service(SERVICE)
        store.put_cap(CAP)
        store.put_task(task := Task("a", TaskKind.RELAUNCH, "run1", 7))
        store.add(LOWERED)
        store.cursor = "s=1"

    again = Store(path, read_only=True)

    assert again.services() == {"a": SERVICE}
    assert again.cap("a", "f1") == CAP
    assert again.tasks() == {"a": task}
    assert again.history("a") == [LOWERED]
    assert again.cursor == "s=1"


def test_a_failure_inside_a_transaction_keeps_nothing_of_it(path):
    """A remedy is committed whole or not at all."""
    store = Store(path)

    def write() -> None:
        with store.transaction():
            store.put_cap(CAP)
            store.put_task(Task("a", TaskKind.RELAUNCH, "run1", 7))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()

    assert (store.cap("a", "f1"), store.tasks()) == (None, {})


def test_a_cap_holds_for_its_fingerprint_only(path):
    """Another model or context is tried afresh."""
    store = Store(path)
    with store.transaction():
        store.put_cap(CAP)
        store.put_cap(replace(CAP, fingerprint="f2", values={"max-num-seqs": 64}))

    assert [cap.values["max-num-seqs"] if (cap := store.cap("a", f)) else None for f in ("f1", "f2", "f3")] == [
        512,
        64,
        None,
    ]


def test_forgetting_drops_every_fingerprint(path):
    """Nothing learned of that service is left, and of others all."""
    store = Store(path)
    with store.transaction():
        for cap in (CAP, replace(CAP, fingerprint="f2"), replace(CAP, service="b")):
            store.put_cap(cap)
        dropped = store.forget_caps("a")

    assert (dropped, store.cap("a", "f1"), store.cap("b", "f1") is not None) == (2, None, True)


def test_one_invocation_leaves_one_row_of_a_kind(path):
    """Eight ranks, a journal read again and a daemon started again still make one row."""
    store = Store(path)
    with store.transaction():
        added = [store.add(happening) for happening in (LOWERED, LOWERED, replace(LOWERED, invocation="run2"))]

    assert added == [True, False, True]
    assert [row.invocation for row in store.history("a")] == ["run1", "run2"]


def test_rows_without_an_invocation_are_all_kept(path):
    """Two applies are two events."""
    store = Store(path)
    with store.transaction():
        for time_us in (1, 2):
            store.add(Happening(time_us, "a", Kind.APPLIED, why="applied"))

    assert [row.time_us for row in store.history("a")] == [1, 2]


def test_history_is_bounded_and_the_oldest_go_first(path):
    """A daemon that runs for years does not fill the disk."""
    store = Store(path)
    with store.transaction():
        for number in range(HISTORY_ROWS + 5):
            store.add(Happening(number, "a", Kind.APPLIED))

    rows = store.history()

    assert (len(rows), rows[0].time_us, rows[-1].time_us) == (HISTORY_ROWS, 5, HISTORY_ROWS + 4)


def test_what_is_older_than_a_year_goes(path):
    """History, and caps for settings that are not in force; what is in force counts however old it is."""
    store = Store(path)
    with store.transaction():
        store.put_service(SERVICE)
        store.put_cap(CAP)
        store.put_cap(old := replace(CAP, fingerprint="f0"))
        store.add(LOWERED)
        store.add(Happening(CAP.learned_us + KEPT_US, "a", Kind.APPLIED))
        assert (len(store.history()), store.cap("a", "f0")) == (2, old)

        store.add(Happening(CAP.learned_us + KEPT_US + 1, "a", Kind.APPLIED))

    assert [row.kind for row in store.history()] == [Kind.APPLIED, Kind.APPLIED]
    assert (store.cap("a", "f0"), store.cap("a", "f1")) == (None, CAP)


def test_removing_a_service_keeps_what_was_learned(path):
    """It may come back with the same settings."""
    store = Store(path)
    with store.transaction():
        store.put_service(SERVICE)
        store.put_cap(CAP)
        store.put_task(Task("a", TaskKind.RELAUNCH, "run1", 7))
        store.remove_service("a")

    assert (store.services(), store.tasks(), store.cap("a", "f1")) == ({}, {}, CAP)


def test_nobody_else_may_read_it(path):
    """It quotes log lines."""
    Store(path).close()

    assert path.stat().st_mode & 0o777 == 0o600


def test_every_commit_reaches_the_disk(path):
    """WAL with synchronous=FULL (2): a power cut loses nothing that was committed."""
    store = Store(path)
    assert [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")] == ["wal", 2]


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(path):
    """Going back a version must not destroy what the newer one wrote."""
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")

    with pytest.raises(StoreError, match="schema version 99"):
        Store(path)

    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (99,)


def test_a_damaged_store_is_refused_by_name(path):
    """The message names the file."""
    path.write_bytes(b"this is no database, but long enough to look at" * 100)

    with pytest.raises(StoreError, match=str(path)):
        Store(path)


def test_looking_creates_nothing(path):
    """`status` on a host without a store leaves it without one."""
    with pytest.raises(StoreError):
        Store(path, read_only=True)

    assert not path.exists()


@pytest.mark.parametrize(
    ("version", "columns", "values"),
    [
        pytest.param(1, ["512"], {"max-num-seqs": 512}, id="max-num-seqs-only"),
        pytest.param(
            3,
            ["NULL", "0.93", "4096", "1"],
            {"gpu-memory-utilization": 0.93, "max-model-len": 4096, "enforce-eager": True},
            id="a-column-for-each-flag",
        ),
        pytest.param(3, ["512", "NULL", "NULL", "0"], {"max-num-seqs": 512}, id="a-switch-that-is-not-given"),
        pytest.param(3, ["NULL", "NULL", "NULL", "0"], {}, id="nothing"),
    ],
)
def test_a_store_of_an_older_version_keeps_what_it_holds(path, version, columns, values):
    """An upgrade in place must not lose what was learned; what is learned from then on takes its place."""
    write_old(path, version, *columns)

    store = Store(path)
    assert store.cap("a", "f1") == replace(CAP, values=values)
    with store.transaction():
        store.put_cap(changed := replace(CAP, values={"max-model-len": 64}))

    assert store.cap("a", "f1") == changed


def write_old(path, version, seqs, *others):
    """A store as that version of the schema had it, with one cap."""
    values = ", ".join(["'a', 'f1'", seqs, "1, 'run1', 0, '1024 did not fit', 7", *others])
    with sqlite3.connect(path) as db:
        db.executescript(f"{''.join(MIGRATIONS[:version])} PRAGMA user_version={version};")
        db.execute(f"INSERT INTO caps VALUES ({values})")


def test_a_flag_that_is_new_takes_a_new_version():
    """A program that does not know the flag must refuse the store, not take it for damaged: add to `MIGRATIONS`."""
    flags = {"max-num-seqs", "gpu-memory-utilization", "max-model-len", "enforce-eager"}

    assert (set(Flag), len(MIGRATIONS)) == (flags, 4)


@pytest.mark.parametrize("values", ['{"max-num-seqr": 8}', '{"max-num-seqs": 0}', '{"max-num-seqs": "8"}', "[8]", "{"])
def test_what_was_never_learned_is_damage(path, values):
    """A flipped bit must not become a flag that vLLM refuses to start with."""
    store = Store(path)
    with store.transaction():
        store.put_cap(CAP)
        store._db.execute("UPDATE caps SET learned = ?", (values,))

    with pytest.raises(DamagedStoreError, match=str(path)):
        store.cap("a", "f1")


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_looking_at_a_store_of_an_older_version_says_what_to_do(path, version):
    """An upgrade was installed and the daemon not restarted: reading must neither change the file nor fail halfway."""
    with sqlite3.connect(path) as db:
        db.executescript(f"{''.join(MIGRATIONS[:version])} PRAGMA user_version={version};")

    with pytest.raises(StoreError, match=f"schema version {version}") as caught:
        Store(path, read_only=True)

    assert "systemctl restart" in caught.value.hint
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (version,)


def test_a_pause_of_its_own_and_one_of_all(path):
    """Either holds for a service, its own is named first, and what left the configuration takes its pause along."""
    store = Store(path)
    everything, own = Pause("", 1, "alice"), Pause("a", 2, "bob")
    with store.transaction():
        store.put_service(SERVICE)
        store.put_pause(own)
    assert (store.pause("a"), store.pause("b")) == (own, None)

    with store.transaction():
        store.put_pause(everything)
    assert (store.pause("a"), store.pause("b")) == (own, everything)
    assert store.pauses() == {"": everything, "a": own}

    with store.transaction():
        store.remove_service("a")
    assert Store(path, read_only=True).pauses() == {"": everything}


def test_a_file_that_was_removed_while_in_use(path):
    """Writing on would write into a file that is gone at the end."""
    store = Store(path)
    store.path.unlink()

    with pytest.raises(StoreError, match="removed or replaced"), store.transaction():
        store.put_task(Task("a", TaskKind.START, "", 1))


def test_a_damaged_page_is_one_error_of_ours(path):
    """Whatever sqlite finds, wherever it reads: one kind of exception, and the name of the file."""
    store = Store(path)
    with store.transaction():
        store.add(Happening(1, "a", Kind.APPLIED))
    store.close()
    store.path.write_bytes(store.path.read_bytes()[:4096] + b"\xff" * 65536)

    with pytest.raises(StoreError, match=r"store\.sqlite"):
        Store(store.path).history("a")


def test_a_task_is_removed_only_as_it_was(path):
    """One that took its place meanwhile is still to be done."""
    store = Store(path)
    first, second = Task("a", TaskKind.START, "", 1), Task("a", TaskKind.RELAUNCH, "run1", 2)
    with store.transaction():
        store.put_task(second)
        store.remove_task(first)
    assert store.tasks() == {"a": second}

    with store.transaction():
        store.remove_task(second)
    assert store.tasks() == {}
