"""The story of one service, what to do about it now, and how to undo what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_supervisor.host import clock
from vllm_supervisor.observe import Condition, ServiceStatus, open_store, statuses
from vllm_supervisor.paths import Paths
from vllm_supervisor.store import Happening, Kind

# What an operator can do about a service that is down; each sentence is followed by a test, to the letter.
ADVICE: Mapping[Condition, tuple[str, ...]] = {
    Condition.GIVEN_UP: (
        "It stays down until you change its settings, or {bound}, and run `vllm-supervisor apply`.",
        "Where memory was freed by other means, `systemctl start {unit}` tries the same values again.",
    ),
    Condition.FAILED: (
        "It stays down until you change its settings and run `vllm-supervisor apply`.",
        "Once a cause outside of them is mended, start it: `systemctl reset-failed {unit} && systemctl start {unit}`.",
    ),
}

UNDO = "To undo: `vllm-supervisor forget {name}`, then `vllm-supervisor apply`; what was declared is then tried again."


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
    return Explanation(status, story, list(advice(status, rows)))


def _told(row: Happening) -> list[str]:
    lines = [f"{clock.local(row.time_us)}  {row.kind}: {row.why}"]
    if row.quote:
        lines.append(f"    vLLM said, in phase {row.phase} (rule {row.rule}):")
        lines.append(f"    > {row.quote}")
        lines.append(f"    all of that run: journalctl _SYSTEMD_INVOCATION_ID={row.invocation}")
    return lines


def advice(status: ServiceStatus, rows: Sequence[Happening]) -> Iterator[str]:
    """Sentences: what holds remedies up, how to undo what was learned, what to do where it is down.

    Args:
        status: how it is.
        rows: its history, oldest first, from before it was last applied too: what was learned then may still hold.
    """
    if status.paused:
        since, whose = clock.local(status.paused.since_us), status.paused.service or "--all"
        yield (
            f"Paused since {since} by {status.paused.by}: nothing is done about a failure until `vllm-supervisor resume"
            f" {whose}`, which answers the latest one."
        )
    if not status.enabled:
        yield "Remedies are switched off in the YAML (`remediation: {enabled: false}`): failures are only reported."
    names = {"name": status.name, "unit": status.unit, "bound": _bound(status)}
    if status.learned or status.condition is Condition.GIVEN_UP:
        yield UNDO.format(**names)
    yield from dict.fromkeys(
        f"To settle it in the YAML: {row.advice} (rule {row.rule}). What was learned holds for these settings only."
        for row in _answers(status, rows)
    )
    for sentence in ADVICE.get(status.condition, ()):
        yield sentence.format(**names)


def _answers(status: ServiceStatus, rows: Sequence[Happening]) -> Iterator[Happening]:
    """The rows that tell why each value is what it is, and why it was given up."""
    latest = {(row.flag, row.to): row for row in rows if row.advice}
    for setting in status.learned:
        if row := latest.get((setting.flag, setting.effective)):
            yield row
    if status.condition is Condition.GIVEN_UP and (gave_up := [row for row in rows if row.kind is Kind.GAVE_UP]):
        yield from (row for row in gave_up[-1:] if row.advice)


def _bound(status: ServiceStatus) -> str:
    """What the operator may allow, of which there was nothing left."""
    used_up = status.attempts >= status.max_attempts
    at_floor = not used_up or (status.effective is not None and status.effective <= status.floor)
    bounds = {"raise remediation.max_attempts": used_up, "lower remediation.floor": at_floor}
    return " and ".join(text for text, reached in bounds.items() if reached)
