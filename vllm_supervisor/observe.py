"""What the services are doing now and how they got there, for people and for programs that ask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from vllm_supervisor import inforce
from vllm_supervisor.config import Service
from vllm_supervisor.diagnosis import Tracker, Trackers, entry_from_journal, worth_reading
from vllm_supervisor.errors import PermissionDeniedError, no_such_service, nothing_applied
from vllm_supervisor.host import systemd
from vllm_supervisor.host.journal import Journal, unit_matches
from vllm_supervisor.host.systemd import UnitState
from vllm_supervisor.inforce import InForce
from vllm_supervisor.learned import Flag
from vllm_supervisor.paths import Paths
from vllm_supervisor.remedy import State
from vllm_supervisor.store import Happening, Pause, Store

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
class Setting:
    """A flag that runs with another value than the declared one, since a remedy set it.

    Attributes:
        declared: as the operator wrote it; None for vLLM's own default.
        effective: as the unit is rendered; True for a switch that is given.
    """

    flag: str
    declared: object
    effective: float


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One service at one moment.

    Attributes:
        phase: what a start is doing, with its progress; "" otherwise.
        declared: `max_num_seqs` in force as the operator wrote it; None for vLLM's own default.
        effective: as the unit is rendered; None for vLLM's own default.
        learned: what remedies set, `max_num_seqs` among it.
        floor: the lowest `max_num_seqs` that a remedy may set.
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
    learned: tuple[Setting, ...]
    floor: int
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
        learned=_learned(item.service, known),
        floor=known.bounds.floor,
        attempts=known.attempts,
        max_attempts=known.bounds.max_attempts,
        enabled=known.bounds.enabled,
        paused=store.pause(item.applied.name),
        restarts=state.restarts,
        invocation=state.invocation,
        since_us=state.changed_us,
        last=last[0] if last else None,
    )


def _learned(service: Service, known: State) -> tuple[Setting, ...]:
    declared = {**service.arguments, Flag.MAX_NUM_SEQS: service.max_num_seqs}
    effective = {**known.learned, Flag.MAX_NUM_SEQS: known.effective}
    values = [(flag, declared.get(flag), effective[flag]) for flag in sorted(known.learned)]
    return tuple(Setting(flag, was, now) for flag, was, now in values if now is not None and now != was)


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
