"""Break each rule by one letter, and a sample or a near-miss tells: no word of a pattern is there for nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.unit.diagnosis.test_rules import messages
from vllm_supervisor.diagnosis import CATALOGUE, Rule
from vllm_supervisor.diagnosis.rule import SIZE

# Words inside a pattern that are its syntax, not text: names of groups, classes of characters.
_SYNTAX = re.compile(r"\(\?P<\w+>|\[[^\]]*\]|\\[a-zA-Z]|\{[\d,]+\}")
_WORD = re.compile(r"[A-Za-z]{4,}")


def broken(text: str, at: int) -> str:
    """The text with a letter there that no log has."""
    return f"{text[:at]}\u00a4{text[at + 1 :]}"


def mutants(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Pattern[str]]]:
    """The pattern with one letter of one word changed, for each word of its text; in `SIZE`, wherever that stands."""
    text = pattern.pattern
    own = _SYNTAX.sub(lambda found: "\0" * len(found[0]), text.replace(SIZE, "\0" * len(SIZE)))
    for word in _WORD.finditer(own):
        yield word[0], re.compile(broken(text, word.start() + 1), pattern.flags)
    if SIZE in text:
        changed = broken(SIZE, SIZE.index("bytes"))
        yield "bytes", re.compile(text.replace(SIZE, changed), pattern.flags)


def told(pattern: re.Pattern[str], message: str) -> object:
    """What the pattern takes from a message."""
    matched = pattern.match(message)
    return None if matched is None else (matched.groupdict(), matched.end())


@pytest.mark.parametrize("rule", {rule.pattern: rule for rule in CATALOGUE}.values(), ids=lambda rule: rule.id)
def test_a_broken_pattern_is_noticed(rule: Rule):
    """Every word that is changed changes what at least one line tells: whether it matches, or its numbers."""
    said = messages(rule) + messages(rule, "near_misses")
    want = [told(rule.pattern, message) for message in said]
    survivors = [word for word, mutant in mutants(rule.pattern) if [told(mutant, message) for message in said] == want]

    assert survivors == []
