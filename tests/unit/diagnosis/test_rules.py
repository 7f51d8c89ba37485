"""Every rule matches its samples and none of its near-misses."""

from __future__ import annotations

from collections import Counter

import pytest

from vllm_supervisor.diagnosis import CATALOGUE, Act, Rule, Trackers, read_text, worth_reading

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
    lines = text.split("\n")
    assert [worth_reading(line) for line in lines] == [worth_reading(line.encode()) for line in lines]


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
