"""From journal entries to runs that are ready to be judged: drain before judging, and only the latest run counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from vllm_supervisor.diagnosis import Diagnosis, Entry, Lifecycle, LifecycleKind, Tracker, Trackers

DRAIN_S = 0.3
"""A unit's last lines may arrive after systemd's word that it exited. A run is judged once it was silent for so long;
journald lets readers wait up to 0.25 s."""

DRAIN_LIMIT_S = 30.0
"""A run is judged after so long however much it still has to say: journald takes in 200,000 lines in a few seconds."""


@dataclass(slots=True)
class Case:
    """One run of one unit, as far as it was followed.

    Attributes:
        tracker: what its lines and systemd's messages mean.
        fingerprint: stamped on its lines; "" before the first.
        begun: systemd's word that it begins was read, so that only another such word can begin a later one.
        served: systemd said "started", which for our units means that the readiness gate has passed.
        due_s: monotonic time from which on it may be judged; None while there is nothing to judge.
        ended_s: when it ended; None while it runs, and for one that was certain before.
        certain: a line told the cause for certain, so that nothing is gained by waiting for more.
        answered: rule of the diagnosis that was answered last. A run that ended for no reason we knew is judged again
            if the reason turns up later.
    """

    unit: str
    invocation: str
    tracker: Tracker = field(default_factory=Tracker)
    fingerprint: str = ""
    begun: bool = False
    served: bool = False
    due_s: float | None = None
    ended_s: float | None = None
    certain: bool = False
    answered: str = ""


class Follower:
    """Follows every run of some units.

    Args:
        names: service by unit.
        small_default: units whose cards are known to be of a kind for which vLLM's default is the small one.
    """

    def __init__(self, names: Mapping[str, str], *, small_default: Collection[str] = ()) -> None:
        self._names = names
        self._trackers = Trackers(small_default=small_default)
        self._cases: dict[str, Case] = {}  # the latest run of each unit

    @property
    def waiting(self) -> bool:
        """Whether a run has ended and not said its last yet."""
        return any(case.due_s is not None for case in self._cases.values())

    def case(self, unit: str, invocation: str) -> Case:
        """What is known of a run; an empty case for one that was never seen or is no longer the latest."""
        case = self._cases.get(unit)
        return case if case and case.invocation == invocation else Case(unit, invocation)

    def assume_served(self, unit: str, invocation: str) -> None:
        """Take a run for ready without having read its beginning, since systemd says so."""
        self.take(Entry(unit, invocation, lifecycle=Lifecycle(LifecycleKind.STARTED)), 0.0)
        self._cases[unit].begun = True

    def take(self, entry: Entry, now_s: float) -> Case | None:
        """Take an entry in. Returns its case if the entry itself says that the run is now served.

        Args:
            entry: of one of the units.
            now_s: monotonic.
        """
        if entry.unit not in self._names:
            return None
        begins = entry.lifecycle is not None and entry.lifecycle.kind is LifecycleKind.STARTING
        case = self._cases.get(entry.unit)
        if case is not None and entry.invocation not in ("", case.invocation):
            if case.begun and not begins:
                return None  # last words of an earlier run, which came when the later one had begun
            case = None
        # Our units are "started" only once their gate has passed, whatever their lines say of it.
        tracker, finding = self._trackers.feed(replace(entry, service=self._names[entry.unit]))
        if case is None:
            before = self._cases.get(entry.unit)
            if before is not None and begins:  # nothing is taken in of that one any more
                self._trackers.forget(before.unit, before.invocation)
            case = self._cases[entry.unit] = Case(entry.unit, entry.invocation, tracker)
        case.begun |= begins
        case.fingerprint = entry.fingerprint or case.fingerprint
        if not tracker.ended and (finding is not None or entry.lifecycle is not None):
            diagnosis = tracker.diagnosis()
            if diagnosis is not None and diagnosis.certain:
                case.due_s, case.certain = now_s, True
        elif tracker.ended and not case.certain:
            case.ended_s = now_s if case.ended_s is None else case.ended_s
            case.due_s = min(now_s + DRAIN_S, case.ended_s + DRAIN_LIMIT_S)
        if entry.lifecycle is not None and entry.lifecycle.kind is LifecycleKind.STARTED and not case.served:
            case.served = True
            return case
        return None

    def due(self, now_s: float) -> list[tuple[Case, Diagnosis]]:
        """The runs that can be judged now and were not, each with its diagnosis; asked once all was read."""
        found = []
        for case in self._cases.values():
            if case.due_s is None or now_s < case.due_s:
                continue
            case.due_s = None
            diagnosis = case.tracker.diagnosis()
            if diagnosis is not None and diagnosis.rule != case.answered:
                case.answered = diagnosis.rule
                found.append((case, diagnosis))
        return found

    def put_off(self, case: Case, due_s: float) -> None:
        """What was due could not be answered: ask again at that monotonic time."""
        case.due_s, case.answered = due_s, ""
