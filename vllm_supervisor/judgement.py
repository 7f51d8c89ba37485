"""From a diagnosis to a decision that is committed and said; nothing here touches a unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vllm_supervisor import inforce, remedy, unit_files
from vllm_supervisor.diagnosis import Diagnosis
from vllm_supervisor.glance import Glance
from vllm_supervisor.host import clock, journal, log
from vllm_supervisor.host.systemd import UnitState
from vllm_supervisor.inforce import InForce
from vllm_supervisor.learned import Flag
from vllm_supervisor.paths import Paths
from vllm_supervisor.remedy import GiveUp, Relaunch, Step, Wait, Withhold
from vllm_supervisor.store import Happening, Kind, LearnedCap, Store, Task, TaskKind

# How loud each kind is, and the ID under which units/vllm-supervisor.catalog explains it to `journalctl -x`.
VOICE = {
    Kind.READY: (log.NOTICE, "4a0e3c42e2f44e8a80bf88337a709baa"),
    Kind.CHANGED: (log.WARNING, "876343a470154659b481b79b2650ec0e"),
    Kind.LOWERED: (log.WARNING, "c64f81b259cf4702b9255e8a80c72750"),
    Kind.GAVE_UP: (log.CRITICAL, "911dd56b171b435485823b79d6889dab"),
    Kind.WAITING: (log.WARNING, "38fba9308550461f9b54f102cddb1065"),
    Kind.REPORTED: (log.ERROR, "abadff9006e746688a57eb17e14ab750"),
    Kind.DOWN: (log.CRITICAL, "0f1ca2249ed9423bb20728348497f03f"),
    Kind.STORE_DAMAGED: (log.CRITICAL, "5f0b9f0a4a5c4e0e9c8f6d6a3b1d7e42"),
    Kind.WITHHELD: (log.ERROR, "73c694bff1294ab6918b9f8fd047afae"),
}

_NO_REASON = ("unknown", "killed")

_ANSWERS = (Kind.LOWERED, Kind.CHANGED, Kind.GAVE_UP)  # an invocation gets one of these at most
_LAST_WORDS = (Kind.GAVE_UP, Kind.DOWN)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one invocation of a unit left in the journal.

    Attributes:
        invocation: systemd's invocation ID.
        fingerprint: stamped on its lines; "" when they carried none.
        cursor: journal position up to which everything was taken in.
        diagnosis: why it failed; None when it became ready.
        complete: False when lines are known or feared to be missing: dropped by journald, rotated away, cut off.
    """

    invocation: str
    fingerprint: str
    cursor: str
    diagnosis: Diagnosis | None = None
    complete: bool = True


class Judge:
    """Answers evidence about services in force.

    Args:
        paths: where things are.
        store: where it is written down.
        killed: unit -> invocation that a remedy killed last.
    """

    def __init__(self, paths: Paths, store: Store, killed: Mapping[str, str], glance: Glance) -> None:
        self._paths, self._store, self._killed, self._glance = paths, store, killed, glance

    def served(self, item: InForce, evidence: Evidence) -> None:
        """A run became ready: note it, once."""
        if self._store.happened(item.applied.name, evidence.invocation, Kind.READY):
            return  # read again, perhaps from before a failure that was answered since
        step = remedy.decide(inforce.state(self._store, item), remedy.Served(evidence.invocation))
        self._commit(item, evidence, step, Kind.READY, why=step.why)

    def failed(self, item: InForce, evidence: Evidence, diagnosis: Diagnosis) -> Task | None:
        """A run failed: decide, commit, say. Returns what is now to be done about the unit, if anything."""
        event = remedy.event(diagnosis, evidence.invocation)
        if event is None:
            return None
        step = remedy.decide(inforce.state(self._store, item), event)
        if self._is_known(item, evidence, diagnosis, step) or _was_stopped(evidence, diagnosis):
            return None
        obstacle = self._obstacle(item, evidence, diagnosis, step)
        if obstacle:
            self._commit(item, evidence, Step(inforce.state(self._store, item), None, ""), Kind.REPORTED, why=obstacle)
            return None
        match step.action:
            case Relaunch():
                kind = Kind.LOWERED if step.action.flag is Flag.MAX_NUM_SEQS else Kind.CHANGED
                return self._commit(item, evidence, step, kind, why=step.why, task=TaskKind.RELAUNCH)
            case GiveUp():
                return self._commit(item, evidence, step, Kind.GAVE_UP, why=step.why, task=TaskKind.STOP)
            case Withhold():
                return self._commit(item, evidence, step, Kind.WITHHELD, why=step.why)
            case Wait():
                return self._commit(item, evidence, step, Kind.WAITING, why=_told(evidence, step, diagnosis))
            case None:
                return None
            case _:
                return self._commit(item, evidence, step, Kind.REPORTED, why=_told(evidence, step, diagnosis))

    def down(self, item: InForce, state: UnitState) -> None:
        """A unit failed and systemd does not start it again: say so, once, unless it is meant to be down.

        Whether its start limit was hit or its exit status is one that is not worth another start: systemd itself logs
        a warning at the most, and nothing would ever follow.
        """
        name, invocation = item.applied.name, state.invocation
        if not state.wanted_by_operator or self._store.tasks().get(name):
            return
        if self._happened(name, invocation, _LAST_WORDS) or journal.end(invocation) is not journal.End.FAILED:
            return
        why = (
            f"{item.unit} is down and systemd does not start it again. Once the cause is mended: "
            f"systemctl reset-failed {item.unit} && systemctl start {item.unit}"
        )
        happening = Happening(clock.realtime_us(), name, Kind.DOWN, invocation, why)
        with self._store.transaction():
            self._store.add(happening)
        _say(item, happening)

    def _happened(self, name: str, invocation: str, kinds: Iterable[Kind]) -> bool:
        return any(self._store.happened(name, invocation, kind) for kind in kinds)

    def _is_known(self, item: InForce, evidence: Evidence, diagnosis: Diagnosis, step: Step) -> bool:
        """Whether it is part of a remedy: a start at the old value by somebody else, or how that one was ended."""
        if self._happened(item.applied.name, evidence.invocation, _ANSWERS):
            return True  # also when what was learned from it was forgotten since
        if not isinstance(step.action, Relaunch | GiveUp):
            return self._killed.get(item.unit) == evidence.invocation
        task, now = self._store.tasks().get(item.applied.name), inforce.state(self._store, item)
        if task is None or task.kind is not TaskKind.RELAUNCH:
            return False
        if isinstance(step.action, GiveUp):  # unless it is the new value that did not fit, started by somebody else
            return diagnosis.tried is None or now.effective is None or diagnosis.tried > now.effective
        return step.state.learned == now.learned

    def _obstacle(self, item: InForce, evidence: Evidence, diagnosis: Diagnosis, step: Step) -> str:
        """Why a decided remedy must not be carried out; "" when nothing speaks against it."""
        if not isinstance(step.action, Relaunch | GiveUp | Withhold):
            return ""
        state = self._glance.state(item.unit)
        if state.invocation and state.invocation != evidence.invocation:
            return "not acted on: a later run of the unit has begun, and its own evidence counts"
        if state.ready:
            return "not acted on: it serves all the same"
        if evidence.fingerprint != item.applied.fingerprint:
            return "not acted on: the run was started from settings that are no longer in force"
        effective = inforce.state(self._store, item).effective
        if diagnosis.tried and effective and diagnosis.tried > effective:
            return f"not acted on: {diagnosis.tried} were tried although the unit says {effective}; a wrapper, perhaps"
        return unit_files.hindrance(self._paths, state)

    def _commit(
        self, item: InForce, evidence: Evidence, step: Step, kind: Kind, *, why: str, task: TaskKind | None = None
    ) -> Task | None:
        """Keep what was learned, what is to be done, what happened and how far the journal was read; then say it."""
        now_us, name = clock.realtime_us(), item.applied.name
        happening = _happening(item, evidence, step, kind, why, now_us)
        todo = Task(name, task, evidence.invocation, now_us) if task else None
        with self._store.transaction():
            before = inforce.state(self._store, item)
            if step.state != before:
                self._store.put_cap(_learned(item, step, self._store, happening))
            if todo:
                self._store.put_task(todo)
            new = self._store.add(happening)
            if evidence.cursor:
                self._store.cursor = evidence.cursor
        if new:
            _say(item, happening)
        return todo

    def say_again(self, item: InForce, task: Task) -> None:
        """Say what is still to be done: whoever decided it may have been killed before it was said."""
        for happening in self._store.history(task.service):
            if happening.invocation == task.invocation and happening.attempt is not None:
                _say(item, happening)


def _was_stopped(evidence: Evidence, diagnosis: Diagnosis) -> bool:
    """Whether somebody ended a start that told no reason of its own; its lines do not always tell that."""
    return diagnosis.rule in _NO_REASON and journal.end(evidence.invocation) is journal.End.STOPPED


def _told(evidence: Evidence, step: Step, diagnosis: Diagnosis) -> str:
    missing = (
        "" if evidence.complete else " (lines of this run are missing from the journal, perhaps the cause among them)"
    )
    return f"{step.why}. {diagnosis.advice[:1].upper()}{diagnosis.advice[1:]}{missing}"


def _happening(item: InForce, evidence: Evidence, step: Step, kind: Kind, why: str, now_us: int) -> Happening:
    diagnosis = evidence.diagnosis
    relaunch = step.action if isinstance(step.action, Relaunch) else None
    tells_attempts = isinstance(step.action, Relaunch | GiveUp)
    if diagnosis is None:
        return Happening(now_us, item.applied.name, kind, evidence.invocation, why, tried=step.state.effective)
    return Happening(
        now_us,
        item.applied.name,
        kind,
        evidence.invocation,
        why,
        rule=diagnosis.rule,
        phase=diagnosis.phase,
        quote=diagnosis.finding.quote,
        advice=diagnosis.advice if tells_attempts else "",
        tried=diagnosis.tried,
        flag=relaunch.flag if relaunch else "",
        to=relaunch.to if relaunch else None,
        attempt=step.state.attempts if tells_attempts else None,
        attempts=step.state.bounds.max_attempts if tells_attempts else None,
    )


def _learned(item: InForce, step: Step, store: Store, happening: Happening) -> LearnedCap:
    name, fingerprint, after = item.applied.name, item.applied.fingerprint, step.state
    known = store.cap(name, fingerprint)
    reason, learned_us = (known.reason, known.learned_us) if known else ("", happening.time_us)
    if isinstance(step.action, Relaunch | GiveUp):
        reason, learned_us = f"{clock.local(happening.time_us)}: {happening.why}", happening.time_us
    return LearnedCap(
        name, fingerprint, after.learned, after.attempts, after.treated, after.exhausted, reason, learned_us
    )


def _say(item: InForce, happening: Happening) -> None:
    priority, message_id = VOICE[happening.kind]
    text = f"{happening.service}: {happening.why}"
    if happening.quote:
        text += f" [{happening.rule}] {happening.quote}"
    log.say(
        priority,
        text,
        message_id=message_id,
        unit=item.unit,
        VLLM_SUPERVISOR_SERVICE=happening.service,
        VLLM_SUPERVISOR_RULE=happening.rule,
        VLLM_SUPERVISOR_INVOCATION=happening.invocation,
    )
