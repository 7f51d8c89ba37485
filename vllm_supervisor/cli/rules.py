"""`vllm-supervisor rules`: the catalogue of failures that are told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vllm_supervisor.cli.options import console, json_option, say_json, styled
from vllm_supervisor.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from vllm_supervisor.diagnosis import Rule


@click.command("rules")
@json_option
def command(as_json: bool) -> None:
    """List every failure that is recognised, and what is done about it."""
    from rich.table import Table

    from vllm_supervisor.diagnosis import CATALOGUE

    if as_json:
        rows = [
            {
                "rule": rule.id,
                "act": str(rule.act),
                "phase": str(rule.phase) if rule.phase else None,
                "versions": rule.versions,
                "title": rule.title,
                "advice": rule.general_advice,
            }
            for rule in CATALOGUE
        ]
        say_json(rows)
        return
    table = Table("RULE", "ACT", "PHASE", "MEANING", box=None, pad_edge=False, header_style="bold")
    for rule in CATALOGUE:
        table.add_row(rule.id, str(rule.act), str(rule.phase or "any"), rule.title)
    console().print(table)


def explain(out: Console, name: str) -> None:
    """Print one rule: what it means, what to do, and a line that it matches.

    Raises:
        ConfigError: there is no rule of that name.
    """
    from difflib import get_close_matches

    from vllm_supervisor.diagnosis import CATALOGUE

    rules = {rule.id: rule for rule in CATALOGUE}
    if name not in rules:
        near = get_close_matches(name, rules, 3)
        raise ConfigError(
            f"cannot explain the rule {name!r}: there is none", hint=f"near it: {', '.join(near) or 'none'}"
        )
    for label, text in _words(rules[name]):
        out.print(styled(f"{label:<9}", "bold") + styled(text))


def _words(rule: Rule) -> list[tuple[str, str]]:
    return [
        ("rule", rule.id),
        ("meaning", rule.title),
        ("phase", str(rule.phase or "any")),
        ("vLLM", rule.versions),
        ("act", str(rule.act)),
        ("advice", rule.general_advice),
        ("matches", rule.samples[0].splitlines()[-1] if rule.samples else ""),
    ]
