"""From journal to answers: follower, judge and store together, over any journal, read in any way.

What is answered must follow from the journal alone: not from how much of it was read at a time, how long that took, how
often it was read again, or when the daemon was started anew. `systemctl` is the only part that is not ours.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import searching
from tests.unit.diagnosis.generations import GENERATIONS, front_end, oom, opening, sampler_v1, sampler_v2
from vllm_supervisor import inforce
from vllm_supervisor.config import Service
from vllm_supervisor.diagnosis import entry_from_journal, worth_reading
from vllm_supervisor.errors import JournalError
from vllm_supervisor.follow import DRAIN_LIMIT_S, DRAIN_S, Case, Follower
from vllm_supervisor.glance import Glance
from vllm_supervisor.judgement import Evidence, Judge
from vllm_supervisor.paths import Paths
from vllm_supervisor.store import AppliedService, Happening, Kind, LearnedCap, Store
from vllm_supervisor.units import Host, fingerprint, render, unit_name

G = GENERATIONS["0.26-0.33"]
NAMES = ("a", "b")
DECLARED = 1024
FLOOR, ATTEMPTS = {"a": 256, "b": 16}, {"a": 8, "b": 2}  # one ends at its floor, the other out of attempts
SERVICES = {
    name: Service.model_validate(
        {
            "name": name,
            "model": "org/model",
            "executable": "/opt/vllm/bin/vllm",
            "source": "/etc/vllm-supervisor/config.yaml",
            "port": 8000 + number,
            "max_num_seqs": DECLARED,
            "remediation": {"floor": FLOOR[name], "max_attempts": ATTEMPTS[name]},
        }
    )
    for number, name in enumerate(NAMES)
}
PRINTS = {name: fingerprint(service, None) for name, service in SERVICES.items()}
UNITS = {
    unit_name(name): render(service, None, Host(252, ("/opt/gate",)), fingerprint=PRINTS[name], after=[])
    for name, service in SERVICES.items()
}
REMEDIES = (Kind.LOWERED, Kind.CHANGED, Kind.GAVE_UP)
STARTING, STARTED = "7d4958e842da4a758f6c1cdc7b36dcc5", "39f53479d3a045ac8e11786248231fbf"
STOPPING, EXITED = "de5b426a63be47a7b6ac3eaac82e2f6f", "98e322203f7a4ed290d09fe03c09fe15"
FAILED = "d9b373ed55a64feb8242e02dbe79a49c"

Fields = Mapping[str, Any]
Remedy = tuple[str, str, Kind, int | None, float | None]


@dataclass
class Run:
    """One run of a unit, as the journal will tell it.

    Attributes:
        kind: `v1` and `v2` run out of memory in the sampler's warm-up, in the words of either model runner; `odd` fails
            of something that no rule knows.
        ranks: how many processes print the failure.
        before: `served` or `stopped`: what happened before the failure; "" for nothing.
        late: lines of its ranks that reach the journal only after the next run has begun.
    """

    kind: str
    ranks: int
    before: str
    late: int


RUNS = st.builds(
    Run,
    st.sampled_from(["v1", "v1", "v2", "odd"]),
    st.integers(1, 3),
    st.sampled_from(["", "", "", "served", "stopped"]),
    st.sampled_from([0, 0, 3, 40]),
)


@dataclass
class World:
    """A journal, cut into parts: in each the units' runs of that turn, in one order of all that could be."""

    parts: list[list[Fields]] = field(default_factory=list)
    expected: list[Remedy] = field(default_factory=list)


def imagine(runs: Mapping[str, list[Run]], chance: Random) -> World:
    """Write the journal that a daemon would cause which answers each turn before the next one begins."""
    world, value, attempts = World(), dict.fromkeys(NAMES, DECLARED), Counter[str]()
    late: dict[str, list[Fields]] = {name: [] for name in NAMES}
    for turn in range(max(map(len, runs.values()))):
        streams = []
        for name in NAMES:
            begun = runs[name][turn : turn + 1]
            lines, rest = told(name, turn, begun[0], value[name], chance) if begun else ([], [])
            # Late lines of the run before come at any time once this one has begun.
            streams += [lines[:1] + merged([lines[1:], late[name]], chance)]
            late[name] = rest
            if begun and begun[0].kind != "odd" and not begun[0].before:
                world.expected.append(answer(name, turn, value[name], attempts))
                value[name] = (
                    max(value[name] // 2, FLOOR[name]) if world.expected[-1][2] is Kind.LOWERED else value[name]
                )
        world.parts.append(merged(streams, chance))
    return world


def answer(name: str, turn: int, tried: int, attempts: Counter[str]) -> Remedy:
    """What a run that did not fit calls for."""
    if tried <= FLOOR[name] or attempts[name] == ATTEMPTS[name]:
        return name, run_id(name, turn), Kind.GAVE_UP, tried, None
    attempts[name] += 1
    return name, run_id(name, turn), Kind.LOWERED, tried, max(tried // 2, FLOOR[name])


def told(name: str, turn: int, run: Run, value: int, chance: Random) -> tuple[list[Fields], list[Fields]]:
    """One run in the journal, and those of its lines that come late: all but the first printing of the failure."""
    cause = {"v1": sampler_v1(value), "v2": sampler_v2(oom()), "odd": ["Oops: nobody has seen this before"]}[run.kind]
    ranks = [
        [
            own(name, turn, value, 300 + rank, line)
            for line in G.log(f"Worker_TP{rank}", 300 + rank, "ERROR", "m.py", "It failed.\n" + "\n".join(cause))
        ]
        for rank in range(run.ranks)
    ]
    front = [own(name, turn, value, 101, line) for line in front_end(G)]
    begin = [systemd(name, turn, STARTING), *(own(name, turn, value, 101, line) for line in opening(G))]
    if run.before:
        begin.append(systemd(name, turn, STARTED if run.before == "served" else STOPPING))
    rest = merged([*ranks[1:], front], chance)
    on_time, late = rest[: len(rest) - run.late], rest[len(rest) - run.late :] if run.late else []
    ended = [
        systemd(name, turn, EXITED, COMMAND="ExecStart", EXIT_CODE="exited", EXIT_STATUS="1"),
        systemd(name, turn, FAILED, UNIT_RESULT="exit-code"),
    ]
    # The first rank's words and systemd's on the end come in either order, and so does the rest.
    return [*begin, *merged([ranks[0], ended, on_time], chance)], late


def merged(streams: list[list[Fields]], chance: Random) -> list[Fields]:
    """Several streams as one, each in its own order."""
    turns = [number for number, stream in enumerate(streams) for _ in stream]
    chance.shuffle(turns)
    streams = [stream[::-1] for stream in streams]
    return [streams[number].pop() for number in turns]


def run_id(name: str, turn: int) -> str:
    return f"{name}{turn}".rjust(32, "0")


def own(name: str, turn: int, value: int, pid: int, line: str) -> Fields:
    return {
        "_TRANSPORT": "stdout",
        "_SYSTEMD_UNIT": unit_name(name),
        "_SYSTEMD_INVOCATION_ID": run_id(name, turn),
        "_PID": str(pid),
        "MESSAGE": line,
        "VLLM_SUPERVISOR_SERVICE": name,
        "VLLM_SUPERVISOR_MAX_NUM_SEQS": str(value),
        "VLLM_SUPERVISOR_FINGERPRINT": PRINTS[name],
    }


def systemd(name: str, turn: int, message_id: str, **more: str) -> Fields:
    return {
        "_TRANSPORT": "journal",
        "_PID": "1",
        "_UID": "0",
        "UNIT": unit_name(name),
        "INVOCATION_ID": run_id(name, turn),
        "MESSAGE_ID": message_id,
        "MESSAGE": f"{unit_name(name)}: Main process exited",
        **more,
    }


class Machine:
    """A host whose journal is a list, and on it a daemon: its way from an entry to an answer, without its acts."""

    def __init__(self, directory: Path) -> None:
        self.paths = Paths(config=directory / "c.yaml", units=directory, state=directory, lock=directory / "lock")
        self.journal: list[Fields] = []
        self.now_s = 1000.0
        for unit, text in UNITS.items():
            (directory / unit).write_text(text)
        store = Store(self.paths.store)
        with store.transaction():
            for name, service in SERVICES.items():
                store.put_service(AppliedService(name, unit_name(name), service.model_dump_json(), PRINTS[name], 1))
        store.close()
        self.store = Store(self.paths.store)
        self.start(0)

    def write(self, entries: list[Fields]) -> None:
        """Something happens, and systemd knows of it."""
        self.journal += entries
        for entry in entries:
            if entry.get("MESSAGE_ID") == STARTING:
                state = f"ActiveState=activating\nSubState=start-post\nInvocationID={entry['INVOCATION_ID']}\n"
                (self.paths.state / f"{entry['UNIT']}.state").write_text(state)

    def start(self, position: int) -> None:
        """A daemon begins, and reads from there on."""
        self.store.close()
        self.store = Store(self.paths.store)
        self.glance = Glance()
        self.judge = Judge(self.paths, self.store, {}, self.glance)
        self.items = {item.unit: item for item in inforce.services(self.store).values()}
        self.follower = Follower({unit: item.applied.name for unit, item in self.items.items()})
        self.position = position

    def restart(self, earlier: int) -> None:
        """As the daemon does it: from where the cursor is or the latest run of a unit began, or earlier than that."""
        begins = {entry["UNIT"]: at for at, entry in enumerate(self.journal) if entry.get("MESSAGE_ID") == STARTING}
        self.start(max(0, min([int(self.store.cursor or 0), *begins.values()]) - earlier))

    def read(self, most: int) -> None:
        """One turn of the loop."""
        keep = None if self.follower.waiting else worth_reading
        batch = self.journal[self.position : self.position + most]
        self.position += len(batch)
        for fields in batch:
            entry = entry_from_journal(fields)
            if entry is None or (keep and not keep(fields["MESSAGE"])):
                continue
            if served := self.follower.take(entry, self.now_s):
                self.judge.served(self.items[served.unit], self.evidence(served, None))
        if len(batch) < most:
            for case, diagnosis in self.follower.due(self.now_s):
                try:
                    self.glance.renew([])
                    self.judge.failed(self.items[case.unit], self.evidence(case, diagnosis), diagnosis)
                except JournalError:  # of this machine, which may have none
                    self.follower.put_off(case, self.now_s + 10)

    def evidence(self, case: Case, diagnosis: Any) -> Evidence:
        complete = case.tracker.evidence_complete
        return Evidence(case.invocation, case.fingerprint, str(self.position), diagnosis, complete)

    def catch_up(self) -> None:
        """Read all there is, and wait until everything was judged; then the remedies are carried out."""
        self.read(10_000)
        self.now_s += DRAIN_S + DRAIN_LIMIT_S
        self.read(10_000)
        with self.store.transaction():
            for task in self.store.tasks().values():
                self.store.remove_task(task)

    def rows(self, *kinds: Kind) -> list[Happening]:
        return [row for row in self.store.history() if row.kind in kinds]

    def remedies(self) -> list[Remedy]:
        return [(row.service, row.invocation, row.kind, row.tried, row.to) for row in self.rows(*REMEDIES)]


@pytest.fixture(scope="module", autouse=True)
def systemctl() -> Iterator[None]:
    """A `systemctl` that knows what the machine of the moment wrote down of its units."""
    directory = Path(tempfile.mkdtemp(prefix="systemctl-"))
    script = '#!/bin/sh\nfor unit; do :; done\ncat "$MACHINE/$unit.state"\n'
    (directory / "systemctl").write_text(script)
    (directory / "systemctl").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        yield
    shutil.rmtree(directory)


@contextmanager
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="machine-") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MACHINE", directory)
        box = Machine(Path(directory))
        yield box
        box.store.close()


def live(box: Machine, part: list[Fields], data: st.DataObject) -> None:
    """Let a part of the journal come about, and read it in some way."""
    left = list(part)
    while left:
        many = data.draw(st.integers(1, len(left)), label="written")
        box.write(left[:many])
        left = left[many:]
        for what in data.draw(st.lists(st.sampled_from(["read", "bit", "wait", "restart", "again"]), max_size=4)):
            match what:
                case "read":
                    box.read(10_000)
                case "bit":
                    box.read(data.draw(st.integers(1, 30)))
                case "wait":
                    box.now_s += data.draw(st.sampled_from([0.01, DRAIN_S, DRAIN_LIMIT_S]))
                case "restart":
                    box.restart(0)
                case "again":
                    box.restart(data.draw(st.integers(1, 400)))


def check_always(box: Machine) -> None:
    """What holds however late anything was read."""
    remedies = box.remedies()
    assert max(Counter((name, run) for name, run, *_ in remedies).values(), default=0) <= 1, "one step a run"
    for name in NAMES:
        lowered = [(tried, to) for service, _, kind, tried, to in remedies if (service, kind) == (name, Kind.LOWERED)]
        cap = box.store.cap(name, PRINTS[name])
        assert (cap.attempts if cap else 0) == len(lowered) <= ATTEMPTS[name], "each relaunch is told"
        assert [to for _, to in lowered] == sorted({to for _, to in lowered}, reverse=True)
        assert all(FLOOR[name] <= to < tried for tried, to in lowered)
        assert (cap.values.get("max-num-seqs") if cap else None) == (lowered[-1][1] if lowered else None)


def those(runs: Mapping[str, list[Run]], which: Callable[[Run], bool]) -> set[tuple[str, str]]:
    return {(name, run_id(name, turn)) for name in NAMES for turn, run in enumerate(runs[name]) if which(run)}


def everything(box: Machine) -> tuple[list[Happening], list[LearnedCap | None]]:
    return box.store.history(), [box.store.cap(name, PRINTS[name]) for name in NAMES]


@searching(30)
@given(st.fixed_dictionaries({name: st.lists(RUNS, max_size=4) for name in NAMES}), st.randoms(), st.data())
def test_the_answers_follow_from_the_journal_alone(
    runs: dict[str, list[Run]], chance: Random, data: st.DataObject
) -> None:
    """Each run that did not fit, and had not served nor been stopped before, has its one answer, and no other has."""
    if not any(runs.values()):
        return
    world = imagine(runs, chance)
    with machine() as box:
        for part in world.parts:
            live(box, part, data)
            box.catch_up()
        check_always(box)
        assert sorted(box.remedies()) == sorted(world.expected)
        served = {
            (name, run_id(name, n)) for name in NAMES for n, run in enumerate(runs[name]) if run.before == "served"
        }
        assert {(row.service, row.invocation) for row in box.rows(Kind.READY)} == served
        before = everything(box)
        box.start(0)
        box.catch_up()
        assert everything(box) == before, "reading it all once more changes nothing"
        with box.store.transaction():
            box.store.forget_caps("a")
        box.start(0)
        box.catch_up()
        assert (box.store.cap("a", PRINTS["a"]), everything(box)[0]) == (None, before[0]), "nor does it undo `forget`"


@pytest.mark.parametrize(("second", "kinds"), [(256, [Kind.LOWERED, Kind.GAVE_UP]), (512, [Kind.LOWERED])])
def test_a_start_by_somebody_else_while_a_remedy_is_under_way(second: int, kinds: list[Kind]) -> None:
    """At the new value, as the unit was written, it is a failure of its own; at the old one it is part of the first."""
    with machine() as box:
        for turn, value in enumerate((512, second)):
            box.write(told("a", turn, Run("v1", 1, "", 0), value, Random(0))[0])
            box.read(10_000)
            box.now_s += DRAIN_S + DRAIN_LIMIT_S
            box.read(10_000)

        assert [row.kind for row in box.rows(*REMEDIES)] == kinds


@searching(30)
@given(st.fixed_dictionaries({name: st.lists(RUNS, max_size=4) for name in NAMES}), st.randoms(), st.data())
def test_runs_that_follow_each_other_faster_than_they_are_read(
    runs: dict[str, list[Run]], chance: Random, data: st.DataObject
) -> None:
    """At most one answer to each, none to one that served or was stopped, and the latest run has its own."""
    if not any(runs.values()):
        return
    world = imagine(runs, chance)
    with machine() as box:
        for part in world.parts:
            live(box, part, data)
        box.catch_up()
        check_always(box)
        excused = those(runs, lambda run: bool(run.before) or run.kind == "odd")
        answered = {(name, run) for name, run, *_ in box.remedies()}
        assert not answered & excused
        latest = {(name, run_id(name, len(runs[name]) - 1)) for name in NAMES if runs[name]}
        # A remedy that is under way from a higher value than it will start has answered what still ran at that value.
        lowered = {name: to for name, _, kind, _, to in box.remedies() if kind is Kind.LOWERED}
        lower = {(name, run) for name, run, _, tried, _ in world.expected if lowered.get(name, DECLARED) < (tried or 0)}
        assert latest - excused <= answered | lower
