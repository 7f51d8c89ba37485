"""Carry out a plan, and watch the services come up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum

from vllm_supervisor import arguments, inforce, our_daemon, planning, salvage
from vllm_supervisor.host import clock, files, systemd
from vllm_supervisor.host.systemd import UnitState
from vllm_supervisor.observe import Eyes
from vllm_supervisor.paths import Paths
from vllm_supervisor.planning import Plan, Verb
from vllm_supervisor.store import Happening, Kind, Store, Task, TaskKind

MEND_S = 30.0
"""How long to wait for another of our processes before a damaged store is rebuilt."""

SETTLE_S = 3.0
"""How long a unit must stay down before that is its end; a remedy takes it up again well within a second."""


def apply(paths: Paths, tell: Callable[[str], None]) -> Plan:
    """Make the host what the YAML says. Whatever stops it in between, applying again ends in the same place.

    Args:
        paths: where things are.
        tell: is given a sentence before something that takes a while.

    Returns:
        What was carried out.

    Raises:
        ConfigError: there is no configuration to read.
        HostError: systemd found fault with a unit, and nothing was written; or a step was refused, and the rest waits.
        StoreError: the store cannot be written; nothing else was.
    """
    while True:
        salvage.mend(paths, wait_s=MEND_S)
        if paths.store.exists():
            Store(paths.store).close()  # which completes one whose making was cut short, as a reader could not
        plan = planning.plan(paths, tell)
        arguments.keep(paths, plan.answers)
        systemd.verify({change.unit: plan.texts[change.unit] for change in plan.of(Verb.CREATE, Verb.UPDATE)})
        if not plan.anything:
            return plan
        files.make_directory(paths.state, mode=0o700)
        with files.exclusive(paths.lock, tell=tell), closing(Store(paths.store)) as store:
            if _overtaken(paths, store, plan):
                continue
            up = _still_up(plan)
            if not up:
                _carry_out(paths, store, plan)
                return plan
        # A stop may take minutes. The lock is for others meanwhile, and what is started may need what these hold.
        tell(f"waiting for {', '.join(up)} to stop")
        systemd.stop(up, block=True)


def _overtaken(paths: Paths, store: Store, plan: Plan) -> bool:
    """Whether another `apply` or a remedy has been at the units since the plan was made."""
    others = planning.standing(store) != plan.standing
    return others or any(files.read_text(paths.units / change.unit) != change.there for change in plan.changes)


def _still_up(plan: Plan) -> list[str]:
    """Units that are to be removed and are not down yet; that they are to stop has then been said to systemd."""
    states = systemd.show([change.unit for change in plan.of(Verb.REMOVE)])
    up = [state.name for state in states.values() if state.job or state.active_state not in ("inactive", "failed")]
    _kill_what_is_loading(up)
    systemd.stop(up, block=False)
    return up


def _carry_out(paths: Paths, store: Store, plan: Plan) -> None:
    written, removed = plan.of(Verb.CREATE, Verb.UPDATE), plan.of(Verb.REMOVE)
    started = [change for change in plan.changes if change.start]
    promised = _promise(store, plan)
    _remove(paths, [change.unit for change in removed])
    # Not the texts of the plan: a remedy that was decided since is in the store, and it gave way to our promise.
    texts = inforce.unit_texts(store, {change.name for change in (*written, *started)}, inforce.this_host())
    for unit, text in texts.items():
        files.write_atomically(paths.units / unit, text)
    systemd.enable([change.unit for change in started])  # what is disabled by hand is not started, and stays so
    if written or removed or plan.reload:
        systemd.daemon_reload()  # after linking: a unit that nothing refers to is forgotten once it stops
    our_daemon.tell()
    _start([change.unit for change in started])
    _fulfilled(store, promised)


def _promise(store: Store, plan: Plan) -> list[Task]:
    """Commit what is to be in force and what is to be started, before anything is touched. Returns the latter."""
    promised = []
    now_us = clock.realtime_us()
    with store.transaction():
        for change in plan.changes:
            if change.verb is Verb.REMOVE:
                store.remove_service(change.name)
                store.add(Happening(now_us, change.name, Kind.REMOVED, why=f"{change.unit} left the configuration"))
            elif change.verb is not Verb.REFUSE:
                store.put_service(plan.applied[change.name])
            if change.start:
                promised.append(Task(change.name, TaskKind.START, "", now_us))
                store.put_task(promised[-1])
            if change.verb in (Verb.CREATE, Verb.UPDATE):
                why = f"{change.unit} {change.verb}d" + (" and started" if change.start else "")
                store.add(Happening(now_us, change.name, Kind.APPLIED, why=why))
    return promised


def _remove(paths: Paths, names: Sequence[str]) -> None:
    """Once it is down: a unit without its file would keep running under settings nobody can see."""
    systemd.disable(names)
    for name in names:
        files.remove(paths.units / name)


def _start(names: Sequence[str]) -> None:
    _kill_what_is_loading(names)
    systemd.reset_failed(names)
    systemd.restart(names)


def _kill_what_is_loading(names: Sequence[str]) -> None:
    """A start that is given up has nothing to save, and vLLM does not obey SIGTERM before it is ready."""
    systemd.kill([state.name for state in systemd.show(names).values() if state.starting and state.main_pid])


def _fulfilled(store: Store, promised: Sequence[Task]) -> None:
    with store.transaction():
        for task in promised:
            store.remove_task(task)


class Outcome(StrEnum):
    """How a start ended."""

    READY = "ready"
    FAILED = "failed"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Progress:
    """One service at one moment of coming up.

    Attributes:
        seconds: since the watch began.
        doing: what it does now, for people.
        value: the flag that a remedy changed last since the watch began, with its value; "" while none did.
        outcome: None while it is on its way.
    """

    name: str
    seconds: float
    doing: str
    value: str = ""
    outcome: Outcome | None = None


class Watch:
    """Follows services until each is ready or down, whoever restarts them meanwhile.

    Args:
        paths: where things are.
        names: service by unit.
        since_us: when they were started, microseconds since the epoch.
    """

    def __init__(self, paths: Paths, names: dict[str, str], since_us: int) -> None:
        self._names, self._since_us = names, since_us
        self._store = Store(paths.store, read_only=True)
        self._began_s = clock.monotonic_s()
        self._down_since_s: dict[str, float] = {}
        self._eyes = Eyes(names, since_us)

    def look(self) -> list[Progress]:
        """Where every service is now, sorted by name."""
        self._eyes.look()
        states = systemd.show(list(self._names))
        return sorted((self._progress(state) for state in states.values()), key=lambda progress: progress.name)

    def _progress(self, state: UnitState) -> Progress:
        tracker = self._eyes.tracker(state)
        name, seconds = self._names[state.name], clock.monotonic_s() - self._began_s
        rows = [row for row in self._store.history(name, limit=50) if row.time_us >= self._since_us]
        changed = [row for row in rows if row.to is not None]
        value = f"{changed[-1].flag} {changed[-1].to:g}" if changed else ""
        if state.ready:
            return Progress(name, seconds, "ready", value, Outcome.READY)
        if state.active_state in ("failed", "inactive") and not state.job:
            since_s = self._down_since_s.setdefault(state.name, clock.monotonic_s())
            if clock.monotonic_s() - since_s > SETTLE_S:
                outcome = Outcome.FAILED if state.active_state == "failed" else Outcome.DOWN
                return Progress(name, seconds, self._reason(rows, state), value, outcome)
        else:
            self._down_since_s.pop(state.name, None)
        doing = "waiting to be started again" if state.waits_for_restart else tracker.progress
        return Progress(name, seconds, doing, value)

    def _reason(self, rows: Sequence[Happening], state: UnitState) -> str:
        told = [row.why for row in rows if row.kind in (Kind.GAVE_UP, Kind.REPORTED, Kind.WAITING, Kind.WITHHELD)]
        diagnosis = self._eyes.tracker(state).diagnosis()
        if told:
            return told[-1]
        if diagnosis is not None:
            return f"{diagnosis.rule}: {diagnosis.finding.quote}"
        return f"{state.active_state} (Result={state.result})"
