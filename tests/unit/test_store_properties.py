"""The store against a plain model of it: several connections, transactions that fail midway, kills, power cuts."""

from __future__ import annotations

import copy
import shutil
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.properties import searching
from vllm_supervisor.learned import Flag
from vllm_supervisor.store import (
    HISTORY_ROWS,
    AppliedService,
    Happening,
    Kind,
    LearnedCap,
    Pause,
    Store,
    Task,
    TaskKind,
)

BEGAN_US = 1_795_969_303_000_000
FEW = 40  # rows of history that every look compares; a look at all of them is a rule of its own
NAMES = st.sampled_from(["a", "b", "it's-100%"])
RUNS = st.sampled_from(["", "", *(f"run{number}" for number in range(6))])
PRINTS = st.sampled_from(["f1", "f2"])
TEXTS = st.sampled_from(["", "why", "\0\x1b[31m'\"%;--", "漢\U0001f600", "x" * 300]) | st.text(max_size=20)
TIMES_US = st.integers(BEGAN_US, BEGAN_US + 10**9)
COUNTS = st.integers(0, 10**9)
SHARES = st.none() | st.floats(0.05, 1)

LEARNED = st.dictionaries(st.sampled_from(Flag), st.integers(1, 10**9) | st.floats(0.05, 1) | st.just(value=True))

SERVICES = st.builds(AppliedService, NAMES, NAMES, TEXTS, PRINTS, TIMES_US)
CAPS = st.builds(
    LearnedCap,
    *(NAMES, PRINTS, LEARNED, COUNTS, RUNS, st.booleans(), TEXTS, TIMES_US),
)
TASKS = st.builds(  # few, so that some differ in one thing only
    Task, NAMES, st.sampled_from(TaskKind), st.sampled_from(["", "run1"]), st.sampled_from([BEGAN_US, BEGAN_US + 1])
)
PAUSES = st.builds(Pause, NAMES | st.just(""), TIMES_US, TEXTS)
HAPPENINGS = st.builds(
    Happening,
    *(TIMES_US, NAMES, st.sampled_from(Kind), RUNS, TEXTS),
    rule=TEXTS,
    phase=TEXTS,
    quote=TEXTS,
    tried=st.none() | COUNTS,
    flag=TEXTS,
    to=SHARES | COUNTS,
    attempt=st.none() | COUNTS,
    attempts=st.none() | COUNTS,
)


@dataclass
class Model:
    """What a store holds; its methods are named as the store's."""

    services: dict[str, AppliedService] = field(default_factory=dict)
    caps: dict[tuple[str, str], LearnedCap] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    pauses: dict[str, Pause] = field(default_factory=dict)
    history: list[Happening] = field(default_factory=list)
    cursor: str = ""

    def put_service(self, service: AppliedService) -> None:
        self.services[service.name] = service

    def remove_service(self, name: str) -> None:
        for table in (self.services, self.tasks, self.pauses):
            table.pop(name, None)

    def put_cap(self, cap: LearnedCap) -> None:
        self.caps[cap.service, cap.fingerprint] = cap

    def forget_caps(self, service: str) -> int:
        mine = [key for key in self.caps if key[0] == service]
        for key in mine:
            del self.caps[key]
        return len(mine)

    def put_task(self, task: Task) -> None:
        self.tasks[task.service] = task

    def remove_task(self, task: Task) -> None:
        if self.tasks.get(task.service) == task:
            del self.tasks[task.service]

    def put_pause(self, pause: Pause) -> None:
        self.pauses[pause.service] = pause

    def remove_pause(self, service: str) -> None:
        self.pauses.pop(service, None)

    def add(self, happening: Happening) -> bool:
        if happening.invocation and self.happened(happening.service, happening.invocation, happening.kind):
            return False
        self.history = [*self.history, happening][-HISTORY_ROWS:]
        return True

    def happened(self, service: str, invocation: str, kind: Kind) -> bool:
        return any((row.service, row.invocation, row.kind) == (service, invocation, kind) for row in self.history)


WRITES = st.one_of(
    st.tuples(st.just("put_service"), SERVICES),
    st.tuples(st.just("remove_service"), NAMES),
    st.tuples(st.just("put_cap"), CAPS),
    st.tuples(st.just("forget_caps"), NAMES),
    st.tuples(st.just("put_task"), TASKS),
    st.tuples(st.just("remove_task"), TASKS | st.none()),  # None: the one that was put last
    st.tuples(st.just("put_pause"), PAUSES),
    st.tuples(st.just("remove_pause"), NAMES | st.just("")),
    st.tuples(st.just("add"), HAPPENINGS),
    st.tuples(st.just("cursor"), TEXTS),
)


class FailedError(Exception):
    """What ends a transaction in its middle."""


class Storing(RuleBasedStateMachine):
    """Two writers and a reader on one file."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="store-"))
        self.model = Model()
        self.last_task = Task("a", TaskKind.START, "", BEGAN_US)

    @initialize(full=st.sampled_from([False] * 7 + [True]))
    def open(self, full: bool) -> None:
        shutil.copy(template(full=full), self.path)
        if full:
            self.model.history = old_rows()
        self.stores = [Store(self.path), Store(self.path), Store(self.path, read_only=True)]
        self.versions = [store.version() for store in self.stores]

    def teardown(self) -> None:
        for store in getattr(self, "stores", []):
            store.close()
        shutil.rmtree(self.directory)

    @property
    def path(self) -> Path:
        return self.directory / "store.sqlite"

    # What is done

    @rule(writer=st.integers(0, 1), writes=st.lists(WRITES, min_size=1, max_size=6), data=st.data())
    def transaction(self, writer: int, writes: list[tuple[str, Any]], data: st.DataObject) -> None:
        """It is kept whole, or it fails before one of its writes and nothing of it is kept."""
        fails_at = data.draw(st.none() | st.integers(0, len(writes)), label="fails at")
        after, before_files = copy.deepcopy(self.model), self.files()
        with suppress(FailedError), self.stores[writer].transaction():
            for number, write in enumerate(writes):
                if number == fails_at:
                    raise FailedError
                self.write(self.stores[writer], after, *write)
            self.compare(self.stores[writer], after)
            self.compare(self.stores[2], self.model)
            self.compare(self.stores[1 - writer], self.model)
            self.killed_now(self.model)
            if fails_at == len(writes):
                raise FailedError
        if fails_at is None:
            self.power_cut(before_files, after, data)
            changed, self.model = after != self.model, after
            self.others_hear_of_it(writer, changed=changed)

    @rule(which=st.integers(0, 2))
    def reopen(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = Store(self.path, read_only=which == 2)
        self.versions[which] = self.stores[which].version()

    @rule()
    def kill(self) -> None:
        """All at once; the files as they are then are taken up by three new processes."""
        survived = self.directory / "survived"
        self.lay_out(survived, self.files())
        for store in self.stores:
            store.close()
        for file in self.directory.glob("store.sqlite*"):
            file.unlink()
        for file in survived.iterdir():
            file.rename(self.directory / file.name)
        self.stores = [Store(self.path), Store(self.path), Store(self.path, read_only=True)]
        self.versions = [store.version() for store in self.stores]

    @rule(which=st.integers(0, 2))
    def look_at_all_of_the_history(self, which: int) -> None:
        rows = self.stores[which].history()
        assert rows == self.model.history
        assert len(rows) <= HISTORY_ROWS
        assert [row.id for row in rows] == sorted({row.id for row in rows})

    # How it is done

    def write(self, store: Store, model: Model, what: str, value: Any) -> None:
        if what == "cursor":
            store.cursor = model.cursor = value
            return
        if what == "put_task":
            self.last_task = value
        value = self.last_task if value is None else value
        assert getattr(store, what)(value) == getattr(model, what)(value)

    def files(self) -> dict[str, bytes]:
        """What a kill leaves: the file and its write-ahead log. The index beside them is made anew."""
        there = (self.path, self.path.with_name("store.sqlite-wal"))
        return {file.name: file.read_bytes() for file in there if file.exists()}

    def lay_out(self, directory: Path, files: dict[str, bytes]) -> Path:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for name, content in files.items():
            (directory / name).write_bytes(content)
        return directory / self.path.name

    def killed_now(self, expected: Model) -> None:
        with closing(Store(self.lay_out(self.directory / "killed", self.files()))) as store:
            self.compare(store, expected)

    def power_cut(self, before: dict[str, bytes], after: Model, data: st.DataObject) -> None:
        """While the commit was being written: what is found is the state before it or, once it is whole, after it."""
        now, log = self.files(), f"{self.path.name}-wal"
        old, new = before.get(log, b""), now.get(log, b"")
        if now[self.path.name] != before[self.path.name] or not new.startswith(old):
            return  # the log was taken into the file meanwhile
        cut = data.draw(st.integers(len(old), len(new)), label="bytes of the log")
        path = self.lay_out(self.directory / "cut", {**now, log: new[:cut]})
        with closing(Store(path)) as store:
            self.compare(store, after if cut == len(new) else self.model)

    def others_hear_of_it(self, writer: int, *, changed: bool) -> None:
        """By the number of the version, which its own changes do not change."""
        before, self.versions = self.versions, [store.version() for store in self.stores]
        assert self.versions[writer] == before[writer]
        assert not changed or all(self.versions[number] != before[number] for number in range(3) if number != writer)

    def compare(self, store: Store, model: Model) -> None:
        assert store.services() == model.services
        assert list(store.services()) == sorted(model.services)
        assert store.tasks() == model.tasks
        assert store.pauses() == model.pauses
        assert store.cursor == model.cursor
        for name in ("a", "b", "it's-100%"):
            for fingerprint in ("f1", "f2"):
                assert store.cap(name, fingerprint) == model.caps.get((name, fingerprint))
            assert store.pause(name) == model.pauses.get(name, model.pauses.get(""))
            assert store.history(name, limit=FEW) == [row for row in model.history if row.service == name][-FEW:]
            row = next((row for row in reversed(model.history) if row.service == name), None)
            assert row is None or store.happened(name, row.invocation, row.kind)
        assert store.history(limit=FEW) == model.history[-FEW:]

    @invariant()
    def everybody_sees_what_was_committed(self) -> None:
        for store in self.stores:
            self.compare(store, self.model)
        assert [store.version() for store in self.stores] == self.versions


def old_rows() -> list[Happening]:
    """A history that is full but for a few rows."""
    row = Happening(BEGAN_US, "a", Kind.APPLIED)
    return [replace(row, time_us=BEGAN_US + number) for number in range(HISTORY_ROWS - 3)]


_TEMPLATES: dict[bool, Path] = {}


def template(*, full: bool) -> Path:
    """A store to start from, made once: empty, or with `old_rows`."""
    if full not in _TEMPLATES:
        path = Path(tempfile.mkdtemp(prefix="store-template-")) / "store.sqlite"
        with closing(Store(path)) as store, store.transaction():
            for row in old_rows() if full else []:
                store.add(row)
        _TEMPLATES[full] = path
    return _TEMPLATES[full]


TestStoring = Storing.TestCase
TestStoring.settings = searching(25, steps=15)
