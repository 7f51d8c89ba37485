"""Carrying out a remedy that was decided: write the unit, empty its control group, start it.

Every step is idempotent and leaves the host in a state from which systemd alone goes on: once the unit is written and
reloaded, whatever starts it next starts it at the new value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum

from vllm_supervisor import inforce, unit_files, units
from vllm_supervisor.glance import Glance
from vllm_supervisor.host import clock, files, journal, processes
from vllm_supervisor.host.systemd import UnitState
from vllm_supervisor.inforce import InForce
from vllm_supervisor.paths import Paths
from vllm_supervisor.store import Happening, Kind, Store, Task, TaskKind

EMPTY_TIMEOUT_S = 30.0
"""After SIGKILL a process ends when its system call does; one that waits for a GPU driver can take many seconds."""

KILL_AGAIN_S = 2.0
"""A process that was made while SIGKILL went round the group is still there after so long."""

TOLD_TIMEOUT_S = 5.0
"""How long after the end of a run systemd's word of it may reach the journal: milliseconds, where nobody floods it."""

GPU_TIMEOUT_S = 60.0
"""How long the driver may take to return the memory of a killed process before we start regardless."""

GPU_STEADY_S = 1.0
"""Used memory must stand still this long: vLLM refuses to start if it changes while it profiles."""

GPU_STEADY_MIB = 64


def hands_off(state: UnitState, job: str, task: Task, *, up_to_date: bool, end: journal.End) -> str:
    """Why a unit must not be killed or started now, as a sentence; "" when nothing is in the way.

    Args:
        state: the unit, read just now.
        job: type of the job queued for it, "" for none.
        task: what is to be done; its invocation is the one that failed.
        up_to_date: whether a main process is there that was started from the unit file as it is now.
        end: what ended the run that failed. A start that is stopped is "failed" too, since vLLM does not end with
            status 0 while it loads; and one that failed is "inactive" once its failure was reset, by us for one, and
            has the result "success" then. One that was stopped between two starts keeps the result of the first.
    """
    if state.load_state == "not-found":
        return "somebody removed the unit file"
    if not state.wanted_by_operator:
        return "somebody disabled or masked the unit"
    if job == "stop":
        return "somebody is stopping the unit"
    if state.active_state == "inactive" and job:
        return "a start is queued already"
    was_reset = state.result == "success" and end is journal.End.FAILED and state.invocation == task.invocation
    if state.active_state == "inactive" and not was_reset:
        return "somebody stopped the unit"
    if state.active_state == "failed" and end is journal.End.STOPPED:
        return "somebody stopped the unit"
    if state.ready:
        return "the unit is serving"
    if state.invocation != task.invocation and up_to_date:
        return "the unit was started again meanwhile"
    return ""


class Act(Enum):
    """What a recovery wants done to its unit; done to all units of which it is wanted at the same time."""

    RELOAD = "have systemd read what was written"
    KILL = "end every process"
    START = "start it"
    RESTART = "start it, in place of what it waits for"
    STOP = "leave it down"


Until = Callable[[], bool]
"""Whether what was waited for has come about; asked again and again, without the lock."""

Steps = Generator[Act | Until, None, None]


class Recovery:
    """One task on one unit, carried out a step at a time so that the loop of the daemon never waits.

    Args:
        paths: where things are.
        store: where the task is.
        host: what units are rendered for.
        item: the service.
        task: what is to be done.
        killed: unit -> invocation that was killed last; kept here, and read by whoever judges how that one ended.
        glance: renewed before each step.
    """

    def __init__(
        self,
        paths: Paths,
        store: Store,
        host: units.Host,
        item: InForce,
        task: Task,
        killed: dict[str, str],
        glance: Glance,
    ) -> None:
        self._paths, self._store, self._host, self._item, self.task = paths, store, host, item, task
        self._killed, self._glance = killed, glance
        self._group = ""  # control group of the old start

    def steps(self) -> Steps:
        """Do it, in steps taken under the lock; what a step yields is done, or waited for, before the next.

        Raises:
            HostError: systemd or the file system refused; the task stays in the store and can be carried out again.
        """
        if why := self._to_write():
            return self._end(Kind.LEFT_ALONE, why)
        yield Act.RELOAD
        deadline_s = clock.monotonic_s() + EMPTY_TIMEOUT_S
        while True:
            why, state = self._look()
            if why:
                return self._end(Kind.LEFT_ALONE, why)
            self._group, self._killed[state.name] = state.control_group, state.invocation
            yield Act.KILL
            yield self._is_empty(clock.monotonic_s() + KILL_AGAIN_S)
            if not self._is_left() or clock.monotonic_s() > deadline_s:
                break
        yield self._memory_is_back()
        if self._glance.state(self._item.unit).active_state == "inactive" and not self._end_is_told():
            yield self._until_told()
        if why := (yield from self._until_started()):
            return self._end(Kind.LEFT_ALONE, why)
        if self.task.kind is TaskKind.STOP:
            return self._end(Kind.LEFT_DOWN, f"{self._item.unit} is left down")
        return self._end(Kind.STARTED_AGAIN, f"{self._item.unit} is started again")

    # What is done: each looks again, and says why nothing more is to be done about the unit; "" when all is well.

    def _to_write(self) -> str:
        unit = self._item.unit
        if why := self._overtaken() or unit_files.hindrance(self._paths, self._glance.state(unit)):
            return why
        text = inforce.unit_texts(self._store, [self.task.service], self._host)[unit]
        files.write_atomically(self._paths.units / unit, text)
        return ""

    def _until_started(self) -> Generator[Act | Until, None, str]:
        """Queue the job. What somebody did since the look is for systemd to see: it takes one job after the other."""
        why, state = self._look()
        if why:
            return why
        if self.task.kind is TaskKind.STOP:
            yield Act.STOP
            return ""
        if state.active_state in ("failed", "inactive"):
            yield Act.START
            return ""
        yield Act.RESTART
        after = self._glance.state(self._item.unit)
        return "somebody stopped the unit" if after.active_state == "inactive" and not after.job else ""

    def _overtaken(self) -> str:
        overtaken = self._store.tasks().get(self.task.service) != self.task
        return "`vllm-supervisor apply` or `forget` came in between" if overtaken else ""

    def _look(self) -> tuple[str, UnitState]:
        """Why the unit must not be touched now, "" when nothing speaks against it; and how it is."""
        unit = self._item.unit
        state, job = self._glance.state(unit), self._glance.job(unit)
        if why := self._overtaken():
            return why, state
        text = files.read_text(self._paths.units / unit) or ""
        end = journal.end(self.task.invocation)
        return hands_off(state, job, self.task, up_to_date=unit_files.runs(state.main_pid, text), end=end), state

    # What is waited for

    def _is_empty(self, deadline_s: float) -> Until:
        return lambda: not self._is_left() or clock.monotonic_s() > deadline_s

    def _is_left(self) -> bool:
        """Whether anything is left of the old start: a process, or systemd's work on its end."""
        in_group = processes.in_control_group(self._group)
        return bool(in_group) or self._glance.state(self._item.unit).active_state == "deactivating"

    def _until_told(self) -> Until:
        """The journal says what ended the run: of a unit whose failure was reset, nothing else tells it from a stop."""
        deadline_s = clock.monotonic_s() + TOLD_TIMEOUT_S
        return lambda: self._end_is_told() or clock.monotonic_s() > deadline_s

    def _end_is_told(self) -> bool:
        return journal.end(self.task.invocation) is not journal.End.NOT_SAID

    def _memory_is_back(self) -> Until:
        """The GPUs have given back the memory of the killed processes, or have had the time to."""
        deadline_s = clock.monotonic_s() + GPU_TIMEOUT_S
        seen, steady_since_s = self._used_mib(), clock.monotonic_s()

        def is_back() -> bool:
            nonlocal seen, steady_since_s
            now = self._used_mib()
            if any(abs(now.get(index, 0) - used) > GPU_STEADY_MIB for index, used in seen.items()):
                seen, steady_since_s = now, clock.monotonic_s()
            return not seen or clock.monotonic_s() > min(deadline_s, steady_since_s + GPU_STEADY_S)

        return is_back

    def _used_mib(self) -> dict[int, int]:
        mine = self._item.service.devices
        return {index: used for index, used in self._glance.used_mib().items() if index in mine}

    def _end(self, kind: Kind, why: str) -> None:
        task = self.task
        with self._store.transaction():
            self._store.remove_task(task)
            self._store.add(Happening(clock.realtime_us(), task.service, kind, task.invocation, why=why))
