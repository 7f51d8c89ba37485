"""The JSON Schema: shipped as it is computed, right about the examples, and wrong about nothing that `load` refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from vllm_supervisor.config import json_schema, load

PACKAGING = Path(__file__).resolve().parents[3] / "packaging"
EXAMPLES = sorted((PACKAGING / "examples").glob("*.yaml"))
SCHEMA = json_schema()


def invalid(text: str) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(yaml.safe_load(text))]


def test_the_shipped_schema_is_this_one() -> None:
    """Write it anew with `vllm-supervisor schema`."""
    assert json.loads((PACKAGING / "config.schema.json").read_text()) == SCHEMA


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_right(example: Path) -> None:
    """Each is what somebody copies first."""
    configuration = load(example)

    assert configuration.problems == ()
    assert configuration.services
    assert invalid(example.read_text()) == []


def test_one_example_shows_every_key() -> None:
    (service,) = yaml.safe_load((PACKAGING / "examples" / "every-key.yaml").read_text())["services"].values()

    assert set(service) == set(SCHEMA["$defs"]["Settings"]["properties"])  # type: ignore[index]


@pytest.mark.parametrize(
    "line",
    [
        "port: '8000'",
        "port: 70000",
        "gpus: []",
        "weights: x",
        "user: Root",
        "executable: vllm",
        "environment: {A-B: x}",
        "environment: {CUDA_VISIBLE_DEVICES: '0'}",
        "credentials: {A: relative}",
        "remediation: {floor: 0}",
        "arguments: {max-num-seqs: 4}",
        "arguments: {max_num_seqs: 4}",
        "arguments: {--seed: 4}",
    ],
)
def test_an_editor_sees_it_too(line: str) -> None:
    others = "".join(f"{key}: x, " for key in ("model", "executable") if not line.startswith(key)).replace(
        ": x", ": /x"
    )

    assert invalid(f"services: {{a: {{{others}}}}}") == []
    assert invalid(f"services: {{a: {{{others}{line}}}}}") != []


def keys(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that a person may write, with its schema."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}", inner
        yield from keys(inner, f"{path}{name}.")


def test_every_key_is_described() -> None:
    tops = [SCHEMA, *SCHEMA["$defs"].values()]  # type: ignore[attr-defined]
    described = {key: inner.get("description", "") for top in tops for key, inner in keys(top)}

    assert len(described) > 15
    assert {key: text for key, text in described.items() if len(text.split()) < 4 or not text.endswith(".")} == {}
