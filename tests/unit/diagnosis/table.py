"""The verdict table: `python -m tests.unit.diagnosis.table` prints which rule is told in which generation's shape."""

from __future__ import annotations

from tests.unit.diagnosis.corpus import cases, verdicts
from tests.unit.diagnosis.generations import GENERATIONS
from tests.unit.diagnosis.test_dress import DRESSES, LOGS, STARTING, start_that_fails, summary, undressed


def generations() -> None:
    """Rules by generations: `ok`, or what was said instead."""
    print("| rule | " + " | ".join(GENERATIONS) + " |")
    print("|---" * (len(GENERATIONS) + 1) + "|")
    for rule in STARTING:
        told = []
        for generation in GENERATIONS.values():
            found = verdicts([line.encode() + b"\n" for line in start_that_fails(generation, rule)])[-1]
            told.append("ok" if found and found.rule == rule.id else str(found and found.rule))
        print(f"| {rule.id} | " + " | ".join(told) + " |")


def corpus() -> None:
    """The corpus in every dress: remedies that should not be, and sampler failures that were missed."""
    false = missed = logs = 0
    for dress in (list, *DRESSES.values()):
        for case in LOGS:
            logs += 1
            acts = [verdict[1:3] for verdict in summary(dress(case.lines)) if verdict[0]]
            wants = [verdict[1:3] for verdict in undressed(case) if verdict[0]]
            false += sum(1 for act in acts if act[0] in ("lower", "set") and act not in wants)
            missed += sum(1 for want in wants if want[0] in ("lower", "set") and want not in acts)
    print(f"\n{len(cases())} logs, {logs} with every dress: {false} false remedies, {missed} missed")


if __name__ == "__main__":
    generations()
    corpus()
