"""The pages of docs/ that are made from the rules are what the rules give. UPDATE_EXPECTED=1 writes them anew."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.diagnosis import table
from vllm_supervisor.diagnosis import CATALOGUE, Phase, Rule, lines, read_text
from vllm_supervisor.diagnosis.normalise import raised
from vllm_supervisor.diagnosis.tracker import describe

CLONE = Path(__file__).parents[2]

HEAD = """\
# The rules

Every failure that is told apart, by the part of a start in which it happens; `vllm-supervisor rules` lists them too.
How well they are told: [verdicts](verdicts.md).

*Act* is what a failure calls for: **lower** `max-num-seqs`, **set** it to the number that vLLM's message names,
**wait** and start again unchanged a few times, **report** to the operator and change nothing, **none**. In an advice,
*numbers* are taken from the log; a part in [brackets] is given when the message tells its numbers. A failure that no
rule knows is reported as `unknown`, with the line and the phase; a run that somebody stopped before it was ready is
`stopped`.
"""
PHASES = {
    Phase.STARTING: "Before the weights",
    Phase.LOADING: "Loading the weights",
    Phase.PROFILING: "Profiling",
    Phase.KV_CACHE: "KV cache",
    Phase.GRAPH_CAPTURE: "CUDA graphs",
    Phase.WARM_UP: "Warm-up",
    Phase.READY: "Serving",
    None: "Any phase",
}


def deciding_line(rule: Rule) -> str:
    """The line of the first sample that the rule's pattern is about."""
    for text in rule.samples[0].splitlines():
        events = [describe(entry.lifecycle) for entry in read_text([text.encode()]) if entry.lifecycle]
        said = [raised(line.text, in_traceback=True) or line.text.strip() for line in lines(text)]
        messages = [each if isinstance(each, str) else each.message for each in said]
        if any(rule.pattern.match(message.removeprefix("Value error, ")) for message in (*events, *messages)):
            return text
    raise AssertionError(f"the first sample of {rule.id} has no line for its pattern")


def frames(rule: Rule) -> str:
    sets = [" and ".join(f"`{name}`" for name in sorted(needed)) for needed in rule.frames]
    return ", or ".join(sets)


def section(rule: Rule) -> Iterator[str]:
    yield f"### {rule.id}\n\n{rule.title}\n\n"
    yield f"- Act: **{rule.act}**\n"
    yield f"- vLLM: {rule.versions}\n"
    yield f"- Advice: {rule.general_advice}\n"
    if rule.frames:
        yield f"- Functions in the traceback: {frames(rule)}\n"
    yield f"\n```\n{deciding_line(rule)}\n```\n\n"


def rules_page() -> str:
    parts = [HEAD, "\n"]
    for phase, title in PHASES.items():
        parts.append(f"## {title}\n\n")
        parts += [part for rule in CATALOGUE if rule.phase == phase for part in section(rule)]
    return "".join(parts).rstrip() + "\n"


@pytest.mark.parametrize(
    ("name", "page"), [("rules.md", rules_page), ("verdicts.md", table.page)], ids=["rules", "verdicts"]
)
def test_a_page_is_what_the_rules_give(name: str, page: Callable[[], str]) -> None:
    """After a change of a rule or of the corpus the page is written anew, and the difference is seen in review."""
    path, text = CLONE / "docs" / name, page()
    if os.environ.get("UPDATE_EXPECTED"):
        path.write_text(text)

    assert path.read_text() == text, f"UPDATE_EXPECTED=1 writes docs/{name} anew"


def test_every_rule_is_on_the_page() -> None:
    """No phase is without a heading, so that none of its rules is left out."""
    headings = re.findall(r"^### (.+)$", rules_page(), re.MULTILINE)

    assert sorted(headings) == sorted(rule.id for rule in CATALOGUE)


def test_the_verdict_table_has_no_wrong_cell() -> None:
    """Each rule is told in each generation, and each has a log."""
    cells = re.findall(r"^\| \S+ \| (\d+) \| (\d+) \|(.*)$", table.page(), re.MULTILINE)

    assert {word for *_, rest in cells for word in rest.replace("|", " ").split()} == {"ok"}
    assert min(int(real) + int(built) for real, built, _ in cells) > 0


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in CLONE.glob("docs/*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link in the documentation is a file of this clone."""
    path = CLONE / page
    targets = re.findall(r"\]\((?!\w+:|#)([^)#]+)", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL))

    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_every_measurement_has_its_figures_and_its_command() -> None:
    """A section names what measures it and shows a table with what was measured."""
    sections = (CLONE / "docs/measurements.md").read_text().split("\n## ")[1:]

    assert sections
    for section in sections:
        title = section.partition("\n")[0]
        assert "`./dev bench " in section, title
        assert re.search(r"^\| -.*\n\|.*\d", section, re.MULTILINE), title
