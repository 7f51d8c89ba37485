"""systemd, by way of `systemctl` and `systemd-analyze`: what units are doing, and the few things we ask of it.

Over 300 lines, since one place speaks to systemd.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor import programs
from vllm_supervisor.errors import HostError

RELOAD_TIMEOUT_S = 90.0
"""`daemon-reload` runs every generator; on a host with many mounts that is seconds, and here it is 0.2 s."""

_PROPERTIES = (
    "LoadState,ActiveState,SubState,Result,InvocationID,MainPID,NRestarts,UnitFileState,DropInPaths,"
    "NeedDaemonReload,Job,ControlGroup,StateChangeTimestampMonotonic,"
    "InactiveExitTimestampMonotonic"
)


@dataclass(frozen=True, slots=True)
class UnitState:
    """What systemd says of one unit at one moment; field names are systemd's properties.

    Attributes:
        job: number of the job that is queued or running for the unit, 0 for none.
        main_pid: 0 for none.
        changed_us: when its state last changed, microseconds since the epoch, 0 if never.
        began_us: when it last left the inactive state, likewise.
        changed_s: when its state last changed, in monotonic seconds, which nobody sets; 0 if never.
    """

    name: str
    load_state: str
    active_state: str
    sub_state: str
    result: str
    invocation: str
    main_pid: int
    restarts: int
    unit_file_state: str
    drop_ins: tuple[str, ...]
    needs_reload: bool
    job: int
    control_group: str
    changed_us: int
    began_us: int
    changed_s: float

    @property
    def ready(self) -> bool:
        """The readiness gate has passed and the main process is there."""
        return self.active_state == "active" and self.sub_state == "running"

    @property
    def starting(self) -> bool:
        """A main process is there and not ready yet."""
        return self.active_state == "activating" and self.sub_state != "auto-restart"

    @property
    def waits_for_restart(self) -> bool:
        """It failed, and systemd starts it again after RestartSec=."""
        return self.sub_state.startswith("auto-restart")

    @property
    def wanted_by_operator(self) -> bool:
        """False once somebody disabled or masked the unit, which says that it is to stay down."""
        return self.load_state == "loaded" and self.unit_file_state not in ("disabled", "masked", "masked-runtime")


def show(units: Sequence[str]) -> dict[str, UnitState]:
    """Read the state of all units in one call.

    Raises:
        HostError: systemd does not answer.
    """
    if not units:
        return {}
    text = programs.run(["systemctl", "show", "--no-pager", "-p", _PROPERTIES, "--", *units])
    blocks = [block for block in text.split("\n\n") if block.strip()]
    # One block a unit, in the order asked.
    return {unit: _state(unit, block) for unit, block in zip(units, blocks, strict=True)}


def _state(unit: str, block: str) -> UnitState:
    got = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
    return UnitState(
        name=unit,
        load_state=got.get("LoadState", ""),
        active_state=got.get("ActiveState", ""),
        sub_state=got.get("SubState", ""),
        result=got.get("Result", ""),
        invocation=got.get("InvocationID", ""),
        main_pid=int(got.get("MainPID") or 0),
        restarts=int(got.get("NRestarts") or 0),
        unit_file_state=got.get("UnitFileState", ""),
        drop_ins=tuple(got.get("DropInPaths", "").split()),
        needs_reload=got.get("NeedDaemonReload") == "yes",
        job=int(got.get("Job") or 0),
        control_group=got.get("ControlGroup", ""),
        changed_us=_realtime_us(got.get("StateChangeTimestampMonotonic", "")),
        began_us=_realtime_us(got.get("InactiveExitTimestampMonotonic", "")),
        changed_s=int(got.get("StateChangeTimestampMonotonic") or 0) / 1e6,
    )


def _realtime_us(monotonic_us: str) -> int:
    """The monotonic time stamps are plain numbers in every version; the others are printed for people."""
    if not monotonic_us.isdigit() or not int(monotonic_us):
        return 0
    return time.time_ns() // 1000 - (time.monotonic_ns() // 1000 - int(monotonic_us))


def jobs() -> dict[str, str]:
    """Type of the job that is queued or running, by unit; `start`, `stop` and `restart` are the common ones.

    Raises:
        HostError: systemd does not answer.
    """
    text = programs.run(["systemctl", "list-jobs", "--no-pager", "--no-legend", "--plain"])
    rows = [line.split() for line in text.splitlines()]
    return {row[1]: row[2] for row in rows if len(row) >= 4}


def version() -> int:
    """Major version of systemd on this host, such as 252.

    Raises:
        HostError: there is no systemctl, or it does not say.
    """
    text = programs.run(["systemctl", "--version"])
    found = re.match(r"systemd (\d+)", text)
    if not found:
        raise HostError(f"cannot tell the version of systemd from {text.splitlines()[:1]}")
    return int(found[1])


def daemon_reload() -> None:
    """Have systemd read all unit files again.

    Raises:
        HostError: it did not.
    """
    programs.run(["systemctl", "daemon-reload"], timeout_s=RELOAD_TIMEOUT_S)


def enable(units: Sequence[str]) -> None:
    """Have the units started at boot, without starting them now.

    Raises:
        HostError: it did not work.
    """
    if units:
        programs.run(["systemctl", "enable", "--no-reload", "--quiet", "--", *units])


def disable(units: Sequence[str]) -> None:
    """Undo `enable`; the units go on running.

    Raises:
        HostError: it did not work. That there was neither a file nor a link of a unit is no failure.
    """
    for unit in units:
        try:
            programs.run(["systemctl", "disable", "--no-reload", "--quiet", "--", unit])
        except HostError as e:
            if "does not exist" not in str(e):
                raise


def restart(units: Sequence[str]) -> None:
    """Queue restart jobs, which also end a wait for RestartSec=; returns before they are done.

    The stop and the start are one job in PID 1: whatever becomes of us, the unit does not stay down.

    Raises:
        HostError: systemd did not take them.
    """
    if units:
        programs.run(["systemctl", "restart", "--no-block", "--", *units])


def restart_unless_stopped(units: Sequence[str]) -> None:
    """Queue a restart job like `restart` does, unless the unit was stopped or is being stopped.

    Whether it was is looked at by PID 1, between two jobs: no stop by hand is too late to be seen. A unit that is
    inactive, failed or on its way there stays as it is, without an error.

    Raises:
        HostError: systemd did not take it, since a stop job is under way for one.
    """
    programs.run(["systemctl", "try-restart", "--no-block", "--job-mode=fail", "--", *units])


def start(units: Sequence[str]) -> None:
    """Queue start jobs for units that are down.

    Raises:
        HostError: systemd did not take it, since a stop job is under way for one.
    """
    programs.run(["systemctl", "start", "--no-block", "--job-mode=fail", "--", *units])


def stop(units: Sequence[str], *, block: bool, override: bool = True) -> None:
    """Stop units; with `block`, return once they are down (at the latest after their TimeoutStopSec=).

    Args:
        units: which ones.
        block: whether to wait.
        override: whether a start that is queued or under way gives way.

    Raises:
        HostError: systemd did not take the jobs. One that is not loaded is down: no failure.
    """
    options = [*([] if block else ["--no-block"]), *([] if override else ["--job-mode=fail"])]
    timeout_s = 600 if block else programs.TIMEOUT_S
    _run_unless_moot(["stop", *options], units, "not loaded", timeout_s=timeout_s)


def hang_up(unit: str) -> None:
    """SIGHUP the main process of a unit, which for a daemon of ours means: read what is in force again.

    Raises:
        HostError: it is not running.
    """
    programs.run(["systemctl", "kill", "--kill-who=main", "--signal=SIGHUP", "--", unit])


def kill(units: Sequence[str]) -> None:
    """SIGKILL every process of the units' control groups: main process, engine, ranks, readiness gate.

    Raises:
        HostError: systemd did not do it. That there was nothing to kill is no failure.
    """
    # Without --kill-whom= (spelled --kill-who= before 252) it is the whole control group.
    _run_unless_moot(["kill", "--signal=SIGKILL"], units, "not loaded", "No main process to kill")


def reset_failed(units: Sequence[str]) -> None:
    """Clear the failed state and the start counter of units.

    Raises:
        HostError: systemd did not do it. That a unit is not loaded is no failure.
    """
    _run_unless_moot(["reset-failed"], units, "not loaded")


def _run_unless_moot(
    words: Sequence[str], units: Sequence[str], *moot: str, timeout_s: float = programs.TIMEOUT_S
) -> None:
    """Run systemctl, which goes on to the next unit after a complaint, and says each on a line."""
    if not units:
        return
    try:
        programs.run(["systemctl", *words, "--", *units], timeout_s=timeout_s)
    except HostError as e:
        complaints = [line for line in _said(e).splitlines() if line.strip()]
        if not all(any(word in line for word in moot) for line in complaints):
            raise


def named_in(error: HostError, units: Sequence[str]) -> list[str]:
    """The units that systemctl complained of, of those it was given; all of them when it named none."""
    words = {word.rstrip(".:") for word in re.findall(r"[\w.:@\\-]+", _said(error))}
    return [unit for unit in units if unit in words] or list(units)


def _said(error: HostError) -> str:
    """What a program printed, without the command line in front of it."""
    return str(error).partition(": exit code ")[2].partition(": ")[2]


def verify(files: Mapping[str, str]) -> None:
    """Have systemd's own parser read unit files before they are put in force. Needs no running systemd.

    Args:
        files: text by file name.

    Raises:
        HostError: it found something; the message holds its words, with the file names as given.
    """
    if not files:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="vllm-supervisor-verify-") as directory:
            _verify(Path(directory), files)
    except OSError as e:
        raise HostError(f"cannot write the units that are to be checked: {e}", hint="nothing was written") from e


def _verify(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    paths = [str(directory / name) for name in files]
    try:
        programs.run(["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", "--", *paths])
    except HostError as e:
        message = str(e).replace(f"{directory}/", "")
        raise HostError(message, hint="nothing was written") from e
