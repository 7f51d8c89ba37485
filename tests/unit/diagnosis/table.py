"""The verdict table: which rule is told in which generation's shape, and on how many logs that rests.

`page` is `docs/verdicts.md`. `python -m tests.unit.diagnosis.table` goes through every log in every dress again and
counts what the page's last line claims; the tests of the dresses hold it.
"""

from __future__ import annotations

import sys

from tests.unit.diagnosis.corpus import Case, cases, verdicts
from tests.unit.diagnosis.generations import GENERATIONS, Generation
from tests.unit.diagnosis.test_dress import DRESSES, LOGS, STARTING, start_that_fails, summary, undressed
from vllm_supervisor.diagnosis import CATALOGUE, Act, Rule

REMEDIES = (Act.LOWER, Act.SET)
DRESSED = len(LOGS) * (1 + len(DRESSES))

HEAD = """\
# Verdict table

Which failure is told in the shape of which release of vLLM: prefixes, colours, banner, markers, and all that the other
processes print when one fails. `ok` means that the verdict on a start that fails so is this rule and no other; else the
cell holds what was said instead. A rule is tried in every shape, also where the release words that failure differently.
The logs are those of [tests/corpus](../tests/corpus/README.md): *real* ones were printed by vLLM, *built* ones are
public reports written out. What each rule means: [rules](rules.md).
"""
OTHERS = """\

What systemd says, what happens while serving, and what rests on other lines of the run does not depend on the shape of
a start:
"""
DRESS = """
A dress is what stands around a line: a generation's prefix, colours, a collector's, container's or journal's wrapper,
bytes that are no text. A *false remedy* would change a value where nothing calls for it; a *missed* one would leave a
failure without the remedy that cures it.
"""


def told(generation: Generation, rule: Rule) -> str:
    """What is said of a start of this generation that fails as the rule's sample says."""
    *_, verdict = verdicts([line.encode() + b"\n" for line in start_that_fails(generation, rule)])
    if verdict is None:
        return "nothing"
    return "ok" if verdict.rule == rule.id else verdict.rule


def logs(name: str) -> tuple[int, int]:
    """How many real and how many built logs the corpus has of a rule."""
    built = [case.path.name.startswith("built-") for case in cases() if case.path.parent.name == name]
    return len(built) - sum(built), sum(built)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown; the first column is text, the others are short."""
    lines = [head, ["---", *[":-:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def counts(name: str) -> list[str]:
    return [name, *map(str, logs(name))]


def claim(false: int = 0, missed: int = 0) -> str:
    """The page's last line."""
    return f"{len(cases())} logs, {DRESSED} with every dress: {false} false remedies, {missed} missed\n"


def page() -> str:
    """`docs/verdicts.md`, from the rules, the generations and the corpus."""
    told_apart = [[*counts(rule.id), *(told(each, rule) for each in GENERATIONS.values())] for rule in STARTING]
    names = {rule.id for rule in STARTING}
    others = sorted({case.path.parent.name for case in cases()} - names)
    return "\n".join(
        [
            HEAD,
            table(["rule", "real", "built", *GENERATIONS], told_apart).rstrip(),
            OTHERS,
            table(["rule", "real", "built"], [counts(name) for name in others]).rstrip(),
            DRESS,
            claim(),
        ]
    )


def mistakes(case: Case, seen: list[tuple[object, ...]]) -> tuple[int, int]:
    """False remedies and missed ones in the summary of a log: its last run against its directory, all against plain."""
    want = CATALOGUE[case.rule].act if case.rule in {rule.id for rule in CATALOGUE} else None
    plain = [run[:4] for run in undressed(case) if len(run) > 1 and run[1] in REMEDIES]
    acts = [run[:4] for run in seen if len(run) > 1 and run[1] in REMEDIES]
    last = seen[-1][1] if len(seen[-1]) > 1 else None
    false = sum(act not in plain for act in acts) + (last in REMEDIES and want not in REMEDIES)
    missed = sum(act not in acts for act in plain) + (want in REMEDIES and last not in REMEDIES)
    return false, missed


def main() -> int:
    """Print the page with its last line counted."""
    found = [mistakes(case, summary(dress(case.lines))) for dress in (list, *DRESSES.values()) for case in LOGS]
    false, missed = (sum(column) for column in zip(*found, strict=True))
    print(page().removesuffix(claim()) + claim(false, missed), end="")
    return 1 if false or missed else 0


if __name__ == "__main__":
    sys.exit(main())
