"""`vllm-supervisor schema`: the JSON Schema of the configuration file, for editors and for checks before a merge."""

from __future__ import annotations

import json

import click


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of the configuration file."""
    from vllm_supervisor.config import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
