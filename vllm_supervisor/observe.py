"""What the services are doing now and how they got there, for people and for programs that ask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from vllm_supervisor import inforce
from vllm_supervisor.diagnosis import Tracker, Trackers, entry_from_journal, worth_reading
from vllm_supervisor.errors import PermissionDeniedError, no_such_service, nothing_applied
from vllm_supervisor.host import clock, systemd
from vllm_supervisor.host.journal import Journal, unit_matches
from vllm_supervisor.host.systemd import UnitState
from vllm_supervisor.inforce import InForce
from vllm_supervisor.paths import Paths
from vllm_supervisor.store import Happening, Kind, Pause, Store

BATCH = 10_000


class Condition(StrEnum):
    """How a service is, in one word."""

    READY = "ready"
    STARTING = "starting"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    GIVEN_UP = "given-up"


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One service at one moment.

    Attributes:
        phase: what a start is doing, with its progress; "" otherwise.
        declared: `max_num_seqs` in force as the operator wrote it; None for vLLM's own default.
        effective: as the unit is rendered; None for vLLM's own default.
        attempts: relaunches this fingerprint had, of `max_attempts`.
        enabled: False when the YAML switches remedies off.
        paused: the pause that holds for it, if one does.
        restarts: systemd's NRestarts.
        since_us: when the unit's state last changed, microseconds since the epoch, 0 if never.
        last: latest row of history, if there is one.
    """

    name: str
    unit: str
    condition: Condition
    phase: str
    declared: int | None
    effective: int | None
    attempts: int
    max_attempts: int
    enabled: bool
    paused: Pause | None
    restarts: int
    invocation: str
    since_us: int
    last: Happening | None


class Eyes:
    """Trackers kept up to date from the journal of some units.

    Args:
        names: units to look at.
        since_us: from when on, microseconds since the epoch.
    """

    def __init__(self, names: Iterable[str], since_us: int) -> None:
        self._trackers = Trackers()
        self._journal = Journal()
        self._journal.match(unit_matches(names))
        self._journal.seek_realtime(since_us)

    def look(self) -> None:
        """Take in what was written since the last look."""
        caught_up = False
        while not caught_up:
            entries, _ = self._journal.read(BATCH, keep=worth_reading)
            caught_up = self._journal.caught_up
            for fields in entries:
                if entry := entry_from_journal(fields):
                    self._trackers.feed(entry)

    def tracker(self, state: UnitState) -> Tracker:
        """What is known of the unit's current invocation."""
        return self._trackers.get(state.name, state.invocation) or Tracker()


def open_store(paths: Paths) -> Store:
    """The store, for looking only.

    Raises:
        StoreError: nothing was ever applied here, or it cannot be read.
        PermissionDeniedError: only root may look.
    """
    try:
        there = paths.store.exists()
    except PermissionError as e:
        raise PermissionDeniedError(f"cannot look into {paths.state}: {e.strerror}") from e
    if not there:
        raise nothing_applied(paths.store)
    return Store(paths.store, read_only=True)


def statuses(paths: Paths, name: str | None = None) -> list[ServiceStatus]:
    """Every service in force, sorted by name, or the one of that name.

    Raises:
        ConfigError: no service of that name is in force.
        StoreError: nothing was applied here yet.
        HostError: systemd does not answer.
    """
    store = open_store(paths)
    services = inforce.services(store)
    if name is not None:
        if name not in services:
            raise no_such_service("find", name, services)
        services = {name: services[name]}
    states = systemd.show([item.unit for item in services.values()])
    starting = [state for state in states.values() if state.starting]
    eyes = Eyes([state.name for state in starting], min((state.began_us for state in starting), default=0))
    if starting:
        eyes.look()
    rows = [_status(store, item, states[item.unit], eyes) for item in services.values()]
    store.close()
    return rows


def _status(store: Store, item: InForce, state: UnitState, eyes: Eyes) -> ServiceStatus:
    known = inforce.state(store, item)
    last = store.history(item.applied.name, limit=1)
    return ServiceStatus(
        name=item.applied.name,
        unit=item.unit,
        condition=_condition(state, exhausted=known.exhausted),
        phase=eyes.tracker(state).progress if state.starting else "",
        declared=item.service.max_num_seqs,
        effective=known.effective,
        attempts=known.attempts,
        max_attempts=known.bounds.max_attempts,
        enabled=known.bounds.enabled,
        paused=store.pause(item.applied.name),
        restarts=state.restarts,
        invocation=state.invocation,
        since_us=state.changed_us,
        last=last[0] if last else None,
    )


def _condition(state: UnitState, *, exhausted: bool) -> Condition:
    if state.ready:
        return Condition.READY
    if state.waits_for_restart:
        return Condition.RESTARTING
    if state.starting:
        return Condition.STARTING
    if state.active_state == "deactivating":
        return Condition.STOPPING
    if exhausted:
        return Condition.GIVEN_UP
    return Condition.FAILED if state.active_state == "failed" else Condition.STOPPED


@dataclass(frozen=True, slots=True)
class Explanation:
    """The story of one service.

    Attributes:
        story: lines, oldest event first.
        advice: what to do now, and how to undo what was done.
    """

    status: ServiceStatus
    story: list[str]
    advice: list[str]


def explain(paths: Paths, name: str) -> Explanation:
    """Tell what happened to a service since it was last applied, and how to undo it.

    Raises:
        ConfigError: no such service is in force.
        StoreError: nothing was applied here yet.
        HostError: systemd does not answer.
    """
    (status,) = statuses(paths, name)
    store = open_store(paths)
    rows = store.history(name)
    store.close()
    applied = [number for number, row in enumerate(rows) if row.kind is Kind.APPLIED]
    story = [line for row in rows[applied[-1] if applied else 0 :] for line in _told(row)]
    return Explanation(status, story, _advice(status))


def _told(row: Happening) -> list[str]:
    lines = [f"{clock.local(row.time_us)}  {row.kind}: {row.why}"]
    if row.quote:
        lines.append(f"    vLLM said, in phase {row.phase} (rule {row.rule}):")
        lines.append(f"    > {row.quote}")
        lines.append(f"    all of that run: journalctl _SYSTEMD_INVOCATION_ID={row.invocation}")
    return lines


def _advice(status: ServiceStatus) -> list[str]:
    lines = []
    if status.paused:
        since, whose = clock.local(status.paused.since_us), status.paused.service or "--all"
        lines.append(
            f"Paused since {since} by {status.paused.by}: nothing is done about a failure until `vllm-supervisor resume"
            f" {whose}`, which answers the latest one."
        )
    if not status.enabled:
        lines.append(
            "Remedies are switched off in the YAML (`remediation: {enabled: false}`): failures are only reported."
        )
    if status.effective != status.declared:
        lines.append(
            f"To undo: `vllm-supervisor forget {status.name}`, then `vllm-supervisor apply`; the declared value is then"
            " tried again."
        )
        lines.append(
            "To get the concurrency back for good, give sampler warm-up room: lower gpu-memory-utilization by 0.02 to"
            " 0.05, or max-model-len; what was learned holds for these settings only."
        )
    if status.condition is Condition.GIVEN_UP:
        lines.append(
            "It stays down until you change its settings and apply, or forget what was learned and apply, or lower"
            f" remediation.floor and run `systemctl start {status.unit}`."
        )
    return lines
