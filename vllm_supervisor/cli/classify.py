"""`vllm-supervisor classify`: what a log says, without a configuration and without systemd."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from vllm_supervisor.cli.options import console, json_option, say_json, styled
from vllm_supervisor.errors import CLASSES, HostError

if TYPE_CHECKING:
    from rich.console import Console

    from vllm_supervisor.diagnosis import Diagnosis, Tracker
    from vllm_supervisor.remedy import Step


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one run of a unit comes to.

    Attributes:
        act: lower, set, wait, report or none.
        to: value that would be set; None unless the act is lower or set.
    """

    unit: str
    invocation: str
    tracker: Tracker
    diagnosis: Diagnosis | None
    act: str
    to: int | None
    why: str


@click.command("classify")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--floor", type=click.IntRange(min=1), help="remediation.floor of the service.  [default: 8]")
@click.option("--declared", type=click.IntRange(min=1), help="max_num_seqs of the service, if it declares one.")
@click.option("--explain", metavar="RULE", help="Explain a rule instead of reading a log.")
@json_option
def command(file: IO[bytes], floor: int | None, declared: int | None, explain: str | None, as_json: bool) -> int:
    """Read a log and say what failed and what would be done about it.

    FILE is what vLLM or `journalctl` printed (-o cat, short, json or export), or - for standard input. Several units
    and starts in it are kept apart; the last one decides the exit code: 0 nothing failed, 10 lower, 11 set, 12 wait,
    13 report.
    """
    if explain:
        from vllm_supervisor.cli import rules

        rules.explain(console(), explain)
        return 0
    verdicts = _verdicts(file, floor, declared)
    if as_json:
        say_json(_document(verdicts))
    else:
        out = console()
        for verdict in verdicts:
            _show(out, verdict, heading=len(verdicts) > 1)
    return CLASSES[verdicts[-1].act]


def _verdicts(file: IO[bytes], floor: int | None, declared: int | None) -> list[Verdict]:
    from vllm_supervisor.config import Remediation
    from vllm_supervisor.diagnosis import Tracker, Trackers, read
    from vllm_supervisor.learned import Flag
    from vllm_supervisor.remedy import State

    allowed = Remediation(floor=floor) if floor else Remediation()
    state = State(allowed, {Flag.MAX_NUM_SEQS: declared} if declared else {})
    trackers = Trackers()
    try:
        trackers.feed_all(read(file))
    except OSError as e:
        raise HostError(f"cannot read {Path(file.name)}: {e.strerror}") from e
    runs = list(trackers) or [("", "", Tracker())]
    return [_verdict(unit, invocation, tracker, state) for unit, invocation, tracker in runs]


def _verdict(unit: str, invocation: str, tracker: Tracker, state: Any) -> Verdict:
    from vllm_supervisor import remedy

    diagnosis = tracker.diagnosis()
    event = None if diagnosis is None else remedy.event(diagnosis, invocation or "the run")
    if diagnosis is None or event is None:
        return Verdict(unit, invocation, tracker, diagnosis, "none", None, "")
    step = remedy.decide(state, event)
    act, to = _act(step, diagnosis)
    return Verdict(unit, invocation, tracker, diagnosis, act, to, step.why)


def _act(step: Step, diagnosis: Diagnosis) -> tuple[str, int | None]:
    from vllm_supervisor.remedy import Relaunch, Wait

    match step.action:
        case Relaunch(_, to):
            return ("set" if to == diagnosis.bound else "lower"), int(to)
        case Wait():
            return "wait", None
        case _:
            return "report", None


def _document(verdicts: list[Verdict]) -> dict[str, Any]:
    """The last run at the top, as a script wants it, and every run below."""
    runs = [_run(verdict) for verdict in verdicts]
    return {**runs[-1], "runs": runs}


def _run(verdict: Verdict) -> dict[str, Any]:
    tracker, diagnosis = verdict.tracker, verdict.diagnosis
    return {
        "unit": verdict.unit,
        "invocation": verdict.invocation,
        "vllm_version": tracker.vllm_version or None,
        "diagnosis": diagnosis.rule if diagnosis else None,
        "phase": str(diagnosis.phase if diagnosis else tracker.phase),
        "ready_before": diagnosis.ready_before if diagnosis else tracker.ready,
        "remedy": {"act": verdict.act, "tried": diagnosis.tried if diagnosis else None, "to": verdict.to},
        "why": verdict.why,
        "advice": diagnosis.advice if diagnosis else "",
        "quote": diagnosis.finding.quote if diagnosis else None,
        "findings": [
            {
                "rule": finding.rule,
                "line": finding.line,
                "phase": str(finding.phase),
                "process": finding.source,
                "numbers": dict(finding.numbers),
                "quote": finding.quote,
            }
            for finding in tracker.findings
        ],
        "evidence_complete": tracker.evidence_complete,
    }


def _show(out: Console, verdict: Verdict, *, heading: bool) -> None:
    diagnosis = verdict.diagnosis
    if heading:
        out.print(styled(f"{verdict.unit or 'run'} {verdict.invocation}".strip(), "bold"))
    if diagnosis is None:
        out.print(styled(f"no failure found; last phase: {verdict.tracker.phase}", "green"))
    else:
        out.print(styled(f"{diagnosis.rule} (while {diagnosis.phase})", "bold red"))
        where = f"line {diagnosis.finding.line}" if diagnosis.finding.line else "systemd"
        out.print(styled(f"  {where}: {diagnosis.finding.quote}"))
        out.print(styled(f"  would do: {verdict.act}" + (f" to {verdict.to}" if verdict.to else ""), "yellow"))
        for sentence in filter(None, (verdict.why, diagnosis.advice)):
            out.print(styled(f"  {sentence}"))
    if not verdict.tracker.evidence_complete:
        out.print(styled("  the log is not complete: lines are missing or it is cut off", "yellow"))
