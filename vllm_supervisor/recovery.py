"""Carrying out a remedy that was decided: write the unit, empty its control group, start it.

Every step is idempotent and leaves the host in a state from which systemd alone goes on: once the unit is written and
reloaded, whatever starts it next starts it at the new value.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

from vllm_supervisor import inforce, units
from vllm_supervisor.errors import LockedError
from vllm_supervisor.host import clock, files, gpu, journal, processes, systemd
from vllm_supervisor.host.systemd import UnitState
from vllm_supervisor.inforce import InForce
from vllm_supervisor.paths import Paths
from vllm_supervisor.store import Happening, Kind, Store, Task, TaskKind

EMPTY_TIMEOUT_S = 30.0
"""After SIGKILL a process ends when its system call does; one that waits for a GPU driver can take many seconds."""

GPU_TIMEOUT_S = 60.0
"""How long the driver may take to return the memory of a killed process before we start regardless."""

GPU_STEADY_S = 1.0
"""Used memory must stand still this long: vLLM refuses to start if it changes while it profiles."""

GPU_STEADY_MIB = 64


def hindrance(paths: Paths, state: UnitState) -> str:
    """Why a unit must not be rewritten, as a sentence; "" when nothing is in the way."""
    text = files.read_text(paths.units / state.name)
    if text is None:
        return f"{paths.units / state.name} is gone: `vllm-supervisor apply` writes it again"
    if units.header(text) is None:
        return f"{paths.units / state.name} was replaced by a file that was not written by us"
    if not units.intact(text):
        return f"{paths.units / state.name} was changed by hand: `vllm-supervisor apply` shows how, and puts it right"
    for drop_in in state.drop_ins:
        if replaces_command(files.read_text(Path(drop_in)) or ""):
            return f"the drop-in {drop_in} replaces ExecStart=, so the unit's own --max-num-seqs has no effect"
    return ""


def replaces_command(drop_in: str) -> bool:
    """Whether a drop-in file sets ExecStart=."""
    settings = (line.partition("=") for line in drop_in.splitlines())
    return any(equals and key.strip() == "ExecStart" for key, equals, _ in settings)


def hands_off(state: UnitState, job: str, task: Task, *, up_to_date: bool, stopped: bool) -> str:
    """Why a unit must not be killed or started now, as a sentence; "" when nothing is in the way.

    Args:
        state: the unit, read just now.
        job: type of the job queued for it, "" for none.
        task: what is to be done; its invocation is the one that failed.
        up_to_date: whether a main process is there that was started from the unit file as it is now.
        stopped: whether a stop job ended the run that failed. A start that is stopped is "failed" too, since vLLM does
            not end with status 0 while it loads.
    """
    if not state.wanted_by_operator:
        return "somebody disabled or masked the unit"
    if job == "stop":
        return "somebody is stopping the unit"
    if state.active_state == "inactive":
        return "a start is queued already" if job else "somebody stopped the unit"
    if stopped and state.active_state == "failed":
        return "somebody stopped the unit"
    if state.ready:
        return "the unit is serving"
    if state.invocation != task.invocation and up_to_date:
        return "the unit was started again meanwhile"
    return ""


def runs(pid: int, text: str) -> bool:
    """Whether a process was started from this unit text; False for PID 0 and for a process that may not be read."""
    return bool(pid) and processes.environment(pid).get(units.RUN_VARIABLE) == units.run_hash(text)


class Recovery:
    """One task on one unit, carried out a step at a time so that the loop of the daemon never waits.

    `steps()` is to be advanced until it ends; each value it yields says what it waits for.
    """

    def __init__(self, paths: Paths, store: Store, host: units.Host, item: InForce, task: Task) -> None:
        self._paths, self._store, self._host, self._item, self.task = paths, store, host, item, task

    def steps(self) -> Iterator[str]:
        """Do it.

        Raises:
            HostError: systemd or the file system refused; the task stays in the store and can be carried out again.
        """
        unit = self._item.unit
        yield from self._until_resumed()
        if why := (yield from self._until_written()):
            return self._end(Kind.LEFT_ALONE, why)
        yield from self._until_resumed()
        why, state = self._look()
        if why:
            return self._end(Kind.LEFT_ALONE, why)
        systemd.kill(unit)
        yield from self._until_empty(state.control_group)
        yield from self._until_memory_is_back()
        yield from self._until_resumed()
        why, _ = self._look()
        if why:
            return self._end(Kind.LEFT_ALONE, why)
        systemd.reset_failed(unit)
        if self.task.kind is TaskKind.STOP:
            systemd.stop([unit], block=False)
            return self._end(Kind.LEFT_DOWN, f"{unit} is left down")
        systemd.restart([unit])
        return self._end(Kind.STARTED_AGAIN, f"{unit} is started again")

    def _until_resumed(self) -> Iterator[str]:
        """A pause holds a remedy up before its next act; the daemon then begins it again, from the store."""
        while pause := self._store.pause(self.task.service):
            yield f"paused by {pause.by}"

    def _until_written(self) -> Generator[str, None, str]:
        """Write the unit once nobody else of ours is changing units, `apply` for one, which may take minutes over it.

        Returns:
            Why it was not written, as a sentence; "" when it was.
        """
        while True:
            try:
                with files.exclusive(self._paths.lock, timeout_s=0):
                    return self._write()
            except LockedError:
                yield "waiting for another vllm-supervisor that is changing units"
                yield from self._until_resumed()

    def _write(self) -> str:
        unit = self._item.unit
        if why := self._overtaken() or hindrance(self._paths, systemd.show([unit])[unit]):
            return why
        text = inforce.unit_texts(self._store, [self.task.service], self._host)[unit]
        files.write_atomically(self._paths.units / unit, text)
        # Asked of systemd, not of the write: we may have been killed between the two.
        if systemd.show([unit])[unit].needs_reload:
            systemd.daemon_reload()
        return ""

    def _overtaken(self) -> str:
        overtaken = self._store.tasks().get(self.task.service) != self.task
        return "`vllm-supervisor apply` or `forget` came in between" if overtaken else ""

    def _look(self) -> tuple[str, UnitState]:
        """Why the unit must not be touched now, "" when nothing speaks against it; and how it is."""
        unit = self._item.unit
        state, job = systemd.show([unit])[unit], systemd.jobs().get(unit, "")
        if why := self._overtaken():
            return why, state
        text = files.read_text(self._paths.units / unit) or ""
        stopped = journal.was_stopped(self.task.invocation)
        return hands_off(state, job, self.task, up_to_date=runs(state.main_pid, text), stopped=stopped), state

    def _until_empty(self, group: str) -> Iterator[str]:
        deadline_s = clock.monotonic_s() + EMPTY_TIMEOUT_S
        while (pids := processes.in_control_group(group)) and clock.monotonic_s() < deadline_s:
            yield f"waiting for {len(pids)} processes to end, {processes.describe(pids[0])} among them"

    def _until_memory_is_back(self) -> Iterator[str]:
        deadline_s = clock.monotonic_s() + GPU_TIMEOUT_S
        seen, steady_since_s = self._used_mib(), clock.monotonic_s()
        while seen and clock.monotonic_s() < min(deadline_s, steady_since_s + GPU_STEADY_S):
            yield "waiting for the GPUs to give back the memory of the killed processes"
            now = self._used_mib()
            if any(abs(now.get(index, 0) - used) > GPU_STEADY_MIB for index, used in seen.items()):
                seen, steady_since_s = now, clock.monotonic_s()

    def _used_mib(self) -> dict[int, int]:
        mine = self._item.service.devices
        return {index: card.used_mib for index, card in gpu.read().items() if index in mine}

    def _end(self, kind: Kind, why: str) -> None:
        task = self.task
        with self._store.transaction():
            self._store.remove_task(task)
            self._store.add(Happening(clock.realtime_us(), task.service, kind, task.invocation, why=why))
