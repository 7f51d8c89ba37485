"""The verdict on every log of the corpus is the one its directory names."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.corpus import ROOT, Case, cases, runs
from vllm_supervisor.diagnosis import CATALOGUE, STOPPED, UNKNOWN, Rank

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_verdict_on_a_log(case: Case):
    """Last run of the log: rule, and what its side file says of number, phase and readiness."""
    found = runs(case.lines)
    verdict = found[-1].diagnosis()

    assert (verdict.rule if verdict else None) == case.rule
    got = {"ready": found[-1].ready, "complete": found[-1].evidence_complete, "runs": None}
    if verdict:
        got |= {
            name: getattr(verdict, name) for name in ("tried", "bound", "phase", "ready_before", "certain", "advice")
        }
        got |= verdict.finding.numbers
    got["runs"] = [diagnosis.rule if (diagnosis := each.diagnosis()) else None for each in found]
    assert {name: got[name] for name in case.expected} == case.expected


def test_every_rule_that_can_be_a_verdict_has_a_log():
    """A rule nobody has seen a whole failure of is not believed."""
    ids = {rule.id for rule in CATALOGUE if rule.rank > Rank.ECHO} | {STOPPED, UNKNOWN, "none"}
    assert ids == {path.name for path in ROOT.iterdir() if path.is_dir()}
