"""A unit's state as systemd would tell it, for tests of what is made of it."""

from __future__ import annotations

from vllm_supervisor.host.systemd import UnitState


def unit_state(
    active: str,
    sub: str,
    *,
    invocation: str = "run1",
    file_state: str = "enabled",
    result: str = "success",
    main_pid: int = 0,
    restarts: int = 0,
    changed_s: float = 0.0,
) -> UnitState:
    """Make one; what is not given is as it is for a unit without a process, a job or a drop-in."""
    return UnitState(
        name="vllm-a.service",
        load_state="loaded",
        active_state=active,
        sub_state=sub,
        result=result,
        invocation=invocation,
        main_pid=main_pid,
        restarts=restarts,
        unit_file_state=file_state,
        drop_ins=(),
        needs_reload=False,
        job=0,
        control_group="",
        changed_us=0,
        began_us=0,
        changed_s=changed_s,
    )
