"""One run of a unit, line by line: where it is, what went wrong, and which of the things that went wrong was first.

It is over 300 lines since everything here reads and writes the one state of a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_supervisor.diagnosis import markers
from vllm_supervisor.diagnosis.gate import worth_reading
from vllm_supervisor.diagnosis.model import (
    NO_NUMBERS,
    QUOTE_LIMIT,
    Act,
    Diagnosis,
    Finding,
    Lifecycle,
    LifecycleKind,
    Phase,
    Rank,
)
from vllm_supervisor.diagnosis.normalise import Line, lines, quote, raised
from vllm_supervisor.diagnosis.rows import CATALOGUE
from vllm_supervisor.diagnosis.rule import Catalogue, Effect, Rule, When
from vllm_supervisor.diagnosis.settings import Settings
from vllm_supervisor.diagnosis.traces import Trace, Traces

UNKNOWN = "unknown"
BAD_VALUE = "bad-value"
STOPPED = "stopped"

_VALIDATION = re.compile(r"\d{1,4} validation errors? for ")
_DETAIL = re.compile(r"\s{1,8}(?:Value error, |Assertion failed, )?(?P<message>.{1,2000}?)(?: \[type=|$)", re.DOTALL)
_FIELD = re.compile(r"[a-z][\w.]{1,80}")
# Joins two exceptions of one traceback: no use as the line that tells.
_JOINT = re.compile(r"The above exception was the direct cause|During handling of the above exception")
_PROFILE_FRAMES = frozenset({"profile_run", "determine_available_memory"})
_KEEPS_GOING = frozenset({Phase.GRAPH_CAPTURE, Phase.WARM_UP})
_ORDER = {phase: number for number, phase in enumerate(Phase)}
_FALL_BACK_ADVICE = "read the lines before the one quoted; the rules do not know this failure"


@dataclass(frozen=True, slots=True)
class _Found:
    finding: Finding
    rule: Rule
    while_serving: bool


class Tracker:
    """What is known of one run. Pure: lines and events go in, the verdict can be asked for at any time.

    Evidence counts before the run was ready and before somebody asked it to stop; while it serves, only what ends the
    engine counts, and never calls for a change. Nothing is raised, whatever the input; memory is bounded.

    Args:
        stamped: `max_num_seqs` the unit was rendered with, as its log lines are stamped; None when vLLM's default
            applied or the lines bear no stamp.
        small_default: the cards are known to be of a kind for which vLLM's default is the small one (A100, GB10),
            which their capacity does not tell.
        catalogue: the rules.
    """

    def __init__(
        self, *, stamped: int | None = None, small_default: bool = False, catalogue: Catalogue = CATALOGUE
    ) -> None:
        self.phase = Phase.STARTING
        self.ready = False
        self.stop_requested = False
        self.gated = False
        """True when systemd says "started" only once the service answers, as the units rendered here do."""
        self.vllm_version = ""
        self._catalogue = catalogue
        self._settings = Settings(stamped, small_default=small_default)
        self._shards = ""
        self._told: dict[str, float] = {}
        self._lines = 0
        self._passed_over: bytes | str = b""
        self._traces = Traces()
        self._found: dict[str, _Found] = {}
        self._last_error: Finding | None = None
        self._exit: Lifecycle | None = None
        self._over = self._at_end = self._signalled = False
        self._lost = self._begun = self._announced = self._headless = False

    # -- what goes in ------------------------------------------------------------------------------------------------

    def line(self, message: bytes | str, *, process: str = "") -> Finding | None:
        """Take one line.

        Args:
            message: as it was written; any bytes.
            process: what tells its writer from the others (`_PID` as text); "" when only the line's prefix tells.

        Returns:
            What it means, if it says something new.
        """
        self._lines += 1
        if not worth_reading(message):
            self._passed_over = message
            return None
        new = None
        if not self.stop_requested:
            for each in lines(message):
                new = self._take(each, process) or new
        self._passed_over = b""
        return new

    def lifecycle(self, event: Lifecycle) -> Finding | None:
        """Take what systemd said about the unit in this run. Returns what it means, if it says something new."""
        match event.kind:
            case LifecycleKind.STARTING:
                self._begun = self._announced = True
            case LifecycleKind.STARTED if self.gated or self.phase is not Phase.STARTING:
                self._become_ready()
            case LifecycleKind.STOPPING:
                self.stop_requested = True
                self.phase = Phase.STOPPING
            case LifecycleKind.SUPPRESSED:
                self._lost = True
            case LifecycleKind.EXITED | LifecycleKind.FAILED | LifecycleKind.OOM_KILL:
                return self._ended(event)
        return None

    def stamp(self, max_num_seqs: int) -> None:
        """Take the value the unit was rendered with, as its lines are stamped with it."""
        self._settings.stamped = max_num_seqs

    def end(self) -> None:
        """No more lines will come: the log ends here."""
        self._at_end = True

    def superseded(self) -> None:
        """A later run has begun. If systemd told of this one's start and not of its end, the host went down."""
        self._at_end = True
        self._lost |= self._announced and not self.ended

    # -- what comes out ----------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True when systemd said that the run is over."""
        return self._exit is not None

    @property
    def max_num_seqs(self) -> int | None:
        """What was in effect, as far as the unit's stamp, vLLM's arguments or its default rule tell."""
        return self._settings.effective(self.vllm_version, None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the lines meant, in their order, each rule once; for a run that is ready, only what came after."""
        return tuple(found.finding for found in self._found.values())

    @property
    def evidence_complete(self) -> bool:
        """False when lines are known or feared to be missing: dropped by journald, rotated away, or cut off."""
        cut_off = (self._at_end or self.ended) and self._traces.any_open
        silent = self.ended and not self.ready and not self.stop_requested and self._last_error is None
        rotated = self._headless or (self.ended and not self._begun)
        return not (self._lost or cut_off or rotated or (silent and not self._found))

    @property
    def progress(self) -> str:
        """Where the start is, for people: `loading weights 45 % (56/125 shards)`."""
        if self.phase is Phase.LOADING:
            return f"loading weights{self._shards}"
        return {
            Phase.STARTING: "starting",
            Phase.PROFILING: "profiling memory",
            Phase.KV_CACHE: "creating the KV cache",
            Phase.GRAPH_CAPTURE: "capturing CUDA graphs",
            Phase.WARM_UP: "warming up",
            Phase.READY: "ready",
            Phase.STOPPING: "stopping",
        }[self.phase]

    def diagnosis(self) -> Diagnosis | None:
        """Why the run failed; None while nothing says that it did.

        A run that somebody stopped before it was ready is "stopped", unless it had failed before that.
        """
        best = max(self._found.values(), key=lambda found: found.rule.rank, default=None)
        if self.ready:
            return self._while_serving(best)
        if best is not None and best.rule.rank >= Rank.GENERAL:
            return self._verdict(best)
        if self.stop_requested or self._signalled:
            return self._other(STOPPED, Act.NONE, "stopped before it was ready", "nothing to do")
        if not (self.ended or self._over or self._at_end):
            return None
        if best is not None and best.rule.rank is Rank.CONSEQUENCE:
            return self._verdict(best)
        if self._last_error is None and not self.ended:
            return None
        return self._unknown()

    # -- one line ----------------------------------------------------------------------------------------------------

    def _take(self, line: Line, process: str) -> Finding | None:
        if line.level and not line.is_error:
            self._mark(line.text)
            return None
        text = line.text
        if not line.level and self._mark(text):
            return None
        trace = self._traces.of(process, line.pid)
        if trace.takes(text):
            self._headless |= self._lines == 1 and not text.startswith("Traceback")
            return None
        if not text or text[0] in " \t":
            trace.source(text)
            return self._detail(line, trace) if trace.validating else None
        return self._said(line, trace)

    def _said(self, line: Line, trace: Trace) -> Finding | None:
        """A line that is no part of a traceback's inside."""
        error = raised(line.text, in_traceback=trace.is_open)
        if error is None:
            return self._judge(line, line.text, "", frozenset())
        frames = trace.close()
        if error.relayed:
            frames = frozenset()  # how the engine learned of it, not how it came about
        trace.validating = line.text if error.kind == "ValidationError" and _VALIDATION.match(error.message) else ""
        return self._judge(line, error.message, None if error.relayed else error.kind, frames)

    def _detail(self, line: Line, trace: Trace) -> Finding | None:
        """One of the lines under `ValidationError: 1 validation error for X`."""
        detail = _DETAIL.match(line.text)
        if detail is None:
            return None
        header, trace.validating = trace.validating, ""
        what = " ".join((header.rpartition(": ")[2], *self._field(), line.text.strip()))
        self._found.pop(BAD_VALUE, None)  # the header alone said the same with less
        return self._judge(replace(line, text=what), detail["message"], "ValidationError", frozenset())

    def _field(self) -> tuple[str, ...]:
        """The name of the field that pydantic writes on the line above its complaint, where it does."""
        above = next(iter(lines(self._passed_over))).text
        return (f"{above}:",) if _FIELD.fullmatch(above) else ()

    def _judge(self, line: Line, message: str, kind: str | None, frames: frozenset[str]) -> Finding | None:
        if self.ready and self._signalled:
            return None  # an engine that is being shut down complains as a dead one does
        when = When.SERVING if self.ready else When.STARTING
        is_evidence = line.is_error or kind != ""
        for rule in self._catalogue.candidates(message, kind):
            if rule.when not in (when, When.ANY) or not (is_evidence or rule.bare):
                continue
            numbers = rule.read(message, kind, frames)
            if numbers is not None:
                earlier = {name: self._told[name] for name in rule.context if name in self._told}
                return self._note(rule, line, {**earlier, **numbers}, frames)
        if is_evidence and not _JOINT.match(message):
            self._last_error = self._finding(UNKNOWN, self.phase, line, NO_NUMBERS)
        return None

    def _note(self, rule: Rule, line: Line, numbers: Mapping[str, float], frames: frozenset[str]) -> Finding | None:
        if rule.effect is Effect.NOT_READY:
            self.ready = False
        elif rule.effect is Effect.START_FAILED:
            self._over = True
        elif rule.effect is Effect.SIGNALLED:
            self._over = self._signalled = True
        phase = self._phase_of(rule, frames)
        return self._add(rule, self._finding(rule.id, phase, line, numbers))

    def _add(self, rule: Rule, finding: Finding) -> Finding | None:
        if rule.id in self._found:
            return None
        self._found[rule.id] = _Found(finding, rule, self.ready)
        return finding

    def _finding(self, rule_id: str, phase: Phase, line: Line, numbers: Mapping[str, float]) -> Finding:
        return Finding(rule_id, phase, quote(line.text, QUOTE_LIMIT), numbers, line.process, self._lines)

    def _phase_of(self, rule: Rule, frames: frozenset[str]) -> Phase:
        """A warm-up happens twice, while profiling and once the KV cache is there: frames tell, else the markers."""
        if rule.phase is not Phase.WARM_UP:
            return rule.phase or self.phase
        if "compile_or_warm_up_model" in frames:
            return Phase.WARM_UP
        before_kv_cache = self.phase in (Phase.LOADING, Phase.PROFILING)
        return Phase.PROFILING if frames & _PROFILE_FRAMES or before_kv_cache else Phase.WARM_UP

    # -- markers -----------------------------------------------------------------------------------------------------

    def _mark(self, text: str) -> bool:
        """Follow the start; True when the line is a marker."""
        found = markers.find(text)
        if found is None:
            return False
        marker, told = found
        for name, value in told.items():
            if name == "version":
                self.vllm_version = value
            else:
                self._told[name] = float(value)
        self._begun |= marker.starts
        self._settings.read(text)
        if text.startswith("[shutdown]"):
            self._signalled = True
        if shards := markers.SHARDS.match(text):
            self._shards = f" {shards[1]} % ({shards[2]}/{shards[3]} shards)"
        if marker.phase is Phase.READY:
            self._become_ready()
        elif marker.phase is not None and not self.ready:
            self._advance(marker.phase)
        return True

    def _advance(self, phase: Phase) -> None:
        """Ranks repeat each other's markers: the phase goes forward, only capture and warm-up come in either order."""
        if _ORDER[phase] > _ORDER[self.phase] or (phase in _KEEPS_GOING and self.phase in _KEEPS_GOING):
            self.phase = phase

    def _become_ready(self) -> None:
        if self.stop_requested or self.ready:
            return
        self.ready, self.phase = True, Phase.READY
        self._found.clear()  # what it survived was no failure
        self._last_error = None

    # -- systemd -----------------------------------------------------------------------------------------------------

    def _ended(self, event: Lifecycle) -> Finding | None:
        if event.kind is LifecycleKind.FAILED or (event.kind is LifecycleKind.EXITED and event.command == "ExecStart"):
            self._exit = self._exit or event
        if self.stop_requested:
            return None
        told = describe(event)
        for rule in self._catalogue.candidates(told, "systemd"):
            if (numbers := rule.read(told, "systemd", frozenset())) is not None:
                finding = Finding(rule.id, rule.phase or self.phase, quote(event.text or told, QUOTE_LIMIT), numbers)
                return self._add(rule, finding)
        return None

    # -- the verdict -------------------------------------------------------------------------------------------------

    def _verdict(self, found: _Found) -> Diagnosis:
        rule, finding = found.rule, found.finding
        tried = bound = None
        if rule.act in (Act.LOWER, Act.SET):
            tried = self._settings.tried(finding.numbers, self.vllm_version)
            fits = finding.numbers.get("fits_seqs")
            bound = None if fits is None else int(fits)
        return Diagnosis(
            rule=rule.id,
            act=rule.act,
            phase=finding.phase,
            finding=finding,
            ready_before=found.while_serving,
            tried=tried,
            bound=bound,
            certain=rule.certain or self.ended or self._over,
            advice=rule.advise(finding.numbers),
        )

    def _while_serving(self, best: _Found | None) -> Diagnosis | None:
        # When somebody kills the main process, systemd asks the others to stop, and those say so.
        killed = self._exit is not None and self._exit.exit_code == "killed"
        if self.stop_requested or (self._signalled and not killed):
            return None
        if best is None:
            ended = "ended by itself while it was serving"
            return self._other(UNKNOWN, Act.REPORT, ended, _FALL_BACK_ADVICE) if self.ended else None
        failed = self._exit is not None and (self._exit.exit_status != 0 or self._exit.kind is LifecycleKind.FAILED)
        if not failed and not any(found.rule.effect is Effect.ENGINE_DEAD for found in self._found.values()):
            return None
        return replace(self._verdict(best), ready_before=True)

    def _unknown(self) -> Diagnosis:
        return self._other(UNKNOWN, Act.REPORT, f"died while {self.progress}, and no rule matched", _FALL_BACK_ADVICE)

    def _other(self, rule_id: str, act: Act, what: str, advice: str) -> Diagnosis:
        finding = self._last_error if act is Act.REPORT else None
        if finding is None:
            text = self._exit.text if self._exit is not None else ""
            finding = Finding(rule_id, self.phase, quote(text or what, QUOTE_LIMIT))
        return Diagnosis(rule_id, act, finding.phase, finding, self.ready, None, None, True, f"{what}: {advice}")


def describe(event: Lifecycle) -> str:
    """A lifecycle event as the text that rules about systemd match."""
    if event.kind is LifecycleKind.EXITED:
        status = "" if event.exit_status is None else f" status={event.exit_status}"
        return f"exited {event.command or 'ExecStart'} code={event.exit_code}{status}"
    return f"{event.kind.value.replace('-', '_')} result={event.result}"
