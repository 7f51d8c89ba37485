"""What a rule is, and how the rules that may apply to a line are found without trying them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vllm_supervisor.diagnosis.model import Act, Phase, Rank

WORDS_LIMIT = 400
"""Characters of a message in which a rule's anchor word must stand; longer than any sentence before its numbers."""

SIZE = r"[\d.]{1,12} (?:bytes|[KMGT]iB)"
"""A size as torch prints it, for the named groups whose name ends in `_gib`."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,40}")
_UNITS_GIB = {"bytes": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 2.0**10}
_OPTIONAL = re.compile(r"\[\[(.*?)\]\]")
_NUMBER = re.compile(r"\{(\w+)\}")

Derive = Callable[[Mapping[str, float]], Mapping[str, float]]
Frames = tuple[frozenset[str], ...]


class When(StrEnum):
    """In which part of a run a rule may apply."""

    STARTING = "starting"
    SERVING = "serving"
    ANY = "any"


class Effect(StrEnum):
    """What a line says about the run, besides being evidence."""

    NONE = "none"
    START_FAILED = "start-failed"
    """vLLM has given the start up; only the exit is still to come."""
    ENGINE_DEAD = "engine-dead"
    """A served engine is dead, whatever becomes of the process."""
    SIGNALLED = "signalled"
    """Somebody ended it with a signal."""
    NOT_READY = "not-ready"
    """It said that it was ready, and was not."""


def no_more_numbers(_numbers: Mapping[str, float]) -> Mapping[str, float]:
    """Derive nothing."""
    return {}


@dataclass(frozen=True, slots=True)
class Rule:
    r"""One way a run of vLLM fails.

    Attributes:
        id: name of the rule, and of its directory in the corpus.
        act: what it calls for.
        phase: where a run is when this happens; None takes it from the markers before the line.
        versions: the vLLM releases that print it, for people.
        title: what it means, for people.
        advice: one sentence for the operator. `{numbers}` are put in, with their unit; a part in `[[ ]]` is left out
            when the message did not tell one of its numbers.
        pattern: what the line says, from its first character on: the message of an exception without its class, the
            text of any other line. Named groups become numbers; a group named `…_gib` holds a size with its unit.
        anchors: words, one of which every text that the pattern matches holds among its first characters. They are
            what the rule is found by, so they should be rare.
        exceptions: classes that may carry the message, without their modules; empty for any, or none.
        frames: names of functions (`file.py:name` for common ones) in the traceback: the rule applies when for one of
            the sets all are there. Empty asks for none.
        rank: how close to the root cause it is.
        when: in which part of a run it applies.
        bare: True when the line may be printed without level and without exception class, as C++ code does.
        certain: True when the run cannot survive this line, so there is no need to wait for the exit.
        effect: what the line says about the run itself.
        context: numbers that earlier lines of the run told and that belong to this failure.
        derive: further numbers, computed from those the message tells.
        samples: lines that it must match, whole, as they are logged.
        near_misses: lines that look alike and must not match.
    """

    id: str
    act: Act
    phase: Phase | None
    versions: str
    title: str
    advice: str
    pattern: re.Pattern[str]
    anchors: tuple[str, ...] = ()
    exceptions: frozenset[str] = frozenset()
    frames: Frames = ()
    rank: Rank = Rank.CAUSE
    when: When = When.STARTING
    bare: bool = False
    certain: bool = False
    effect: Effect = Effect.NONE
    context: tuple[str, ...] = ()
    derive: Derive = no_more_numbers
    samples: tuple[str, ...] = field(default=(), repr=False)
    near_misses: tuple[str, ...] = field(default=(), repr=False)

    def read(self, message: str, kind: str | None, frames: frozenset[str]) -> dict[str, float] | None:
        """Apply the rule: its numbers when it matches, None when not.

        Args:
            message: an exception's message, or the text of a line that is none.
            kind: the exception's class without its modules; "" for a line that is none; None when it is not known.
            frames: functions of the traceback that the message ended.
        """
        if self.exceptions and kind is not None and kind not in self.exceptions:
            return None
        if self.frames and not any(needed <= frames for needed in self.frames):
            return None
        found = self.pattern.match(message)
        if found is None:
            return None
        numbers = {name: _number(name, value) for name, value in found.groupdict().items() if value is not None}
        return {**numbers, **self.derive(numbers)}

    @property
    def general_advice(self) -> str:
        """The advice for no run in particular: *numbers* by their names, in [brackets] what may be left out."""
        return _OPTIONAL.sub(r"[\1]", _NUMBER.sub(r"*\1*", self.advice))

    def advise(self, numbers: Mapping[str, float]) -> str:
        """The advice with the numbers of one finding in it."""
        shown = {name: _shown(name, value) for name, value in numbers.items()}

        def optional(part: re.Match[str]) -> str:
            try:
                return part[1].format_map(shown)
            except KeyError:
                return ""

        return _OPTIONAL.sub(optional, self.advice).format_map(shown)


def _number(name: str, value: str) -> float:
    amount, _, unit = value.partition(" ")
    try:
        number = float(amount.replace(",", ""))
    except ValueError:
        return 0.0
    return number * _UNITS_GIB.get(unit, 1.0) if name.endswith("_gib") else number


def _shown(name: str, value: float) -> str:
    if name.endswith("_gib"):
        return f"{value:.2f} GiB" if abs(value) >= 1 else f"{value * 1024:.0f} MiB"
    return f"{value:.2f}" if name.endswith("_utilization") else f"{value:.0f}"


class Catalogue:
    """Rules, found by the words of a message: the cost of a line does not grow with their number.

    Among rules that match one line, the first row wins, so rows that ask for more (frames) stand before those that ask
    for less.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._by_id = {rule.id: rule for rule in self.rules}
        index: dict[str, dict[int, None]] = {}
        for number, rule in enumerate(self.rules):
            for word in rule.anchors or rule.exceptions:
                index.setdefault(word, {})[number] = None
        self._index = {word: tuple(numbers) for word, numbers in index.items()}

    def __getitem__(self, rule_id: str) -> Rule:
        return self._by_id[rule_id]

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def candidates(self, message: str, kind: str | None) -> list[Rule]:
        """The rules that one of the message's words, or the exception's class, points to, in the order of the rows."""
        index = self._index
        numbers = set(index.get(kind or "", ()))
        for word in _WORD.findall(message, 0, WORDS_LIMIT):
            if word in index:
                numbers.update(index[word])
        return [self.rules[number] for number in sorted(numbers)]
