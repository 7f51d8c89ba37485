"""Every rule matches its samples and none of its near-misses."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from vllm_supervisor.diagnosis import CATALOGUE, Act, Rule, Trackers, lines, read_text, worth_reading
from vllm_supervisor.diagnosis.normalise import raised
from vllm_supervisor.diagnosis.rows.samples import traceback
from vllm_supervisor.diagnosis.tracker import describe

SAMPLES = [pytest.param(rule, text, id=f"{rule.id}-{n}") for rule in CATALOGUE for n, text in enumerate(rule.samples)]
NEAR = [pytest.param(rule, text, id=f"{rule.id}-{n}") for rule in CATALOGUE for n, text in enumerate(rule.near_misses)]


def matched(text: str) -> set[str]:
    """Ids of the rules that some line of the text matched."""
    trackers = Trackers()
    trackers.feed_all(read_text(line.encode() for line in text.splitlines(keepends=True)))
    return {finding.rule for _, _, tracker in trackers for finding in tracker.findings}


@pytest.mark.parametrize("rule", CATALOGUE.rules, ids=lambda rule: rule.id)
def test_every_rule_has_a_sample_and_a_near_miss(rule: Rule):
    """A rule nobody can show a line for is a guess."""
    assert rule.samples
    assert rule.near_misses


@pytest.mark.parametrize(("rule", "text"), SAMPLES)
def test_a_sample_matches_its_rule(rule: Rule, text: str):
    """The line is seen, and seen as this rule's."""
    assert rule.id in matched(text)


@pytest.mark.parametrize(("rule", "text"), NEAR)
def test_a_near_miss_does_not_match(rule: Rule, text: str):
    """What looks alike is not mistaken for it."""
    assert rule.id not in matched(text)


def test_ids_are_unique():
    """An id names one row, one directory of the corpus, one section of the documentation."""
    assert not [name for name, times in Counter(rule.id for rule in CATALOGUE).items() if times > 1]


@pytest.mark.parametrize("rule", CATALOGUE.rules, ids=lambda rule: rule.id)
def test_a_rule_can_be_found(rule: Rule):
    """A rule without an anchor word or an exception class would never be tried."""
    assert rule.anchors or rule.exceptions


@pytest.mark.parametrize(("rule", "text"), SAMPLES)
def test_the_gate_lets_every_sample_through(rule: Rule, text: str):
    """At least the line that decides passes the first look, as text and as bytes alike."""
    parts = text.split("\n")
    assert [worth_reading(part) for part in parts] == [worth_reading(part.encode()) for part in parts]


@pytest.mark.parametrize("rule", CATALOGUE.rules, ids=lambda rule: rule.id)
def test_advice_can_be_given_without_any_number(rule: Rule):
    """A message cut short still gives advice, unless it cannot match without its numbers."""
    needed = dict.fromkeys(rule.pattern.groupindex, 1.0)
    assert "[[" not in rule.advise(needed)
    assert "{" not in rule.advise(needed)


def test_only_the_sampler_family_lowers():
    """Halving max-num-seqs helps in these cases and harms in every other."""
    acting = {rule.id for rule in CATALOGUE if rule.act in (Act.LOWER, Act.SET)}
    assert acting == {
        "sampler-oom",
        "sampler-oom-frames",
        "sampler-state-oom",
        "pooler-oom",
        "pooler-oom-frames",
        "mamba-blocks",
    }


def test_no_word_leads_to_many_rules():
    """The cost of a line stays flat only while each word is rare; the memory errors that differ by frames share one."""
    by_word = Counter(word for rule in CATALOGUE for word in (rule.anchors or rule.exceptions))
    assert [word for word, times in by_word.items() if times > 8] == ["memory", "CUBLAS_STATUS_ALLOC_FAILED"]


def alternatives(pattern: str) -> list[str]:
    """The parts of a regular expression between its outermost bars."""
    parts, depth, in_class, escaped = [""], 0, False, False
    for letter in pattern:
        if not escaped and not in_class and depth == 0 and letter == "|":
            parts.append("")
            continue
        if not escaped:
            in_class = (letter == "[" or in_class) and letter != "]"
            depth += 0 if in_class or letter not in "()" else 1 if letter == "(" else -1
        escaped = letter == "\\" and not escaped
        parts[-1] += letter
    return parts


def messages(rule: Rule, lines_of: str = "samples") -> list[str]:
    """What the samples of all rules with this pattern say: messages of exceptions, texts, systemd's events."""
    said = []
    for text in (text for each in CATALOGUE if each.pattern is rule.pattern for text in getattr(each, lines_of)):
        events = [entry.lifecycle for entry in read_text([text.encode()]) if entry.lifecycle]
        said += [describe(event) for event in events]
        for line in (line for part in text.split("\n") for line in lines(part)):
            error = raised(line.text, in_traceback=True)
            said.append(error.message if error else line.text.strip().removeprefix("Value error, "))
    return said


@pytest.mark.parametrize("rule", CATALOGUE.rules, ids=lambda rule: rule.id)
def test_every_alternative_of_a_pattern_has_a_sample(rule: Rule):
    """What is in a pattern without a line that shows it is a guess."""
    said = messages(rule)
    parts = alternatives(rule.pattern.pattern)
    assert [part for part in parts if not any(re.match(part, text, rule.pattern.flags) for text in said)] == []


@pytest.mark.parametrize(
    ("rule", "frames"), [pytest.param(r, f, id=f"{r.id}-{n}") for r in CATALOGUE for n, f in enumerate(r.frames)]
)
def test_a_place_is_not_hidden_by_an_earlier_row(rule: Rule, frames: frozenset[str]):
    """Each set of functions leads to its own row, whatever rows stand before it."""
    named = [name if ":" in name else f"x.py:{name}" for name in sorted(frames)]
    assert matched(traceback(*named, last="torch.OutOfMemoryError: CUDA out of memory.")) == {rule.id}
