"""`vllm-supervisor schema`: the JSON Schema of the configuration file, for editors and for checks before a merge."""

from __future__ import annotations

import click

from vllm_supervisor.cli.options import say_json


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of the configuration file."""
    from vllm_supervisor.config import json_schema

    say_json(json_schema())
