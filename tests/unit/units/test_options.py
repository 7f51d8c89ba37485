"""Arguments held against the options that a vLLM says it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vllm_supervisor.config import Service
from vllm_supervisor.units import Option, complaints, read_options

VALUE, SWITCH = Option(1, 1), Option(0, 0)
OPTIONS = {
    "--host": VALUE,
    "--port": VALUE,
    "--max-num-seqs": VALUE,
    "--max-model-len": VALUE,
    "--max-num-batched-tokens": VALUE,
    "--compilation-config": VALUE,
    "-cc": VALUE,
    "--enforce-eager": SWITCH,
    "--no-enforce-eager": SWITCH,
    "--enable-lora": SWITCH,
    "--disable-log-stats": SWITCH,
    "--headless": SWITCH,
    "--middleware": VALUE,
    "--allowed-origins": VALUE,
    "--served-model-name": Option(1, None),
    "--profile": Option(0, 1),
    "--pair": Option(2, 2),
    "--dtype": Option(1, 1, ("auto", "bfloat16", "float16")),
    "--detailed-traces": Option(1, None, ("model", "worker", "all")),
}


def found(arguments: dict[str, Any], version: str | None = "0.32.0") -> list[tuple[str, str, str]]:
    service = Service.model_construct(name="a", source=Path("/c.yaml"), model="org/m", arguments=arguments)
    return [(c.key[1], c.message, c.hint) for c in complaints(service, OPTIONS, version)]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"max-model-len": "8192"}, id="value"),
        pytest.param({"max-model-len": "-1"}, id="value-with-a-dash"),
        pytest.param({"enforce-eager": True}, id="switch"),
        pytest.param({"enforce-eager": False}, id="switch-off"),
        pytest.param({"disable-log-stats": False}, id="switch-off-by-being-left-out"),
        pytest.param({"compilation-config.mode": "3"}, id="dotted"),
        pytest.param({"compilation-config.pass_config.fuse": True}, id="dotted-switch"),
        pytest.param({"compilation-config": {"mode": 3}}, id="json"),
        pytest.param({"served-model-name": ["a", "b"]}, id="several"),
        pytest.param({"served-model-name": "a"}, id="one-of-several"),
        pytest.param({"middleware": ["a", "b"]}, id="repeated"),
        pytest.param({"allowed-origins": ["a", "b"]}, id="list-as-json"),
        pytest.param({"profile": True}, id="value-that-may-be-left-out"),
        pytest.param({"profile": "cuda"}, id="value-that-may-be-given"),
        pytest.param({"pair": ["a", "b"]}, id="pair"),
        pytest.param({"dtype": "auto"}, id="choice"),
        pytest.param({"detailed-traces": ["model", "all"]}, id="choices"),
    ],
)
def test_what_vllm_takes_is_taken(arguments: dict[str, Any]) -> None:
    """Every form that reaches the command line."""
    assert found(arguments) == []


NO_FLAG = "vLLM 0.32.0 has no such flag"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        pytest.param({"max-modl-len": "1"}, NO_FLAG, "did you mean `max-model-len`?", id="misspelt"),
        pytest.param({"max-num-b": "1"}, NO_FLAG, "did you mean `max-num-batched-tokens`?", id="abbreviated"),
        pytest.param({"now-enforce-eager": True}, NO_FLAG, "did you mean `enforce-eager`?", id="not-the-one-with-no"),
        pytest.param({"swap-space": "4"}, NO_FLAG, "`vllm serve --help=all` lists those it has", id="like-none"),
        pytest.param({"compilation-confg.mode": "3"}, NO_FLAG, "did you mean `compilation-config.mode`?", id="dotted"),
        pytest.param({"cc": "3"}, NO_FLAG, "`vllm serve --help=all` lists those it has", id="short-is-not-long"),
        pytest.param({"enforc-eager": False}, NO_FLAG, "did you mean `enforce-eager`?", id="misspelt-and-off"),
        pytest.param({"enable-lora": False}, "vLLM 0.32.0 has no way to switch it off", "leave it out", id="one-way"),
        pytest.param(
            {"dtype": False},
            "vLLM 0.32.0 has no way to switch it off",
            "write `dtype: VALUE`, or leave it out",
            id="off-for-a-value",
        ),
        pytest.param({"enforce-eager": "1"}, "a switch in vLLM 0.32.0", "write true or false", id="value-for-a-switch"),
        pytest.param({"dtype": True}, "vLLM 0.32.0 wants a value for it", "write `dtype: VALUE`", id="no-value"),
        pytest.param({"pair": "a"}, "vLLM 0.32.0 takes 2 values for it", "", id="too-few"),
        pytest.param({"dtype": ["auto", "auto"]}, "vLLM 0.32.0 takes one value for it", "", id="too-many"),
        pytest.param(
            {"dtype": "bfloat61"}, "vLLM 0.32.0 does not know `bfloat61` here", "did you mean `bfloat16`?", id="choice"
        ),
        pytest.param(
            {"detailed-traces": ["all", "x"]},
            "vLLM 0.32.0 does not know `x` here",
            "it is one of model, worker, all",
            id="second-choice",
        ),
    ],
)
def test_what_vllm_would_refuse_is_named(arguments: dict[str, Any], message: str, hint: str) -> None:
    """The argument as written, why, and what was probably meant."""
    assert found(arguments) == [(*arguments, message, hint)]


def test_every_argument_is_looked_at() -> None:
    """All that is wrong with a service comes at once, each argument once."""
    assert [key for key, _, _ in found({"a": "1", "max-model-len": "1", "b": ["1", "2"], "c": True})] == ["a", "b", "c"]


def test_a_vllm_of_unknown_version() -> None:
    """The message does without."""
    assert found({"x": "1"}, None)[0][1] == "this vLLM has no such flag"


def answer(**options: Any) -> dict[str, Any]:
    always = ("--host", "--port", "--max-num-seqs")
    return {**{name: {"nargs": None, "choices": None} for name in always}, **options}


@pytest.mark.parametrize(
    ("said", "option"),
    [
        pytest.param({"nargs": None, "choices": None}, Option(1, 1), id="one"),
        pytest.param({"nargs": 0, "choices": None}, Option(0, 0), id="switch"),
        pytest.param({"nargs": 2, "choices": None}, Option(2, 2), id="two"),
        pytest.param({"nargs": "?", "choices": None}, Option(0, 1), id="may"),
        pytest.param({"nargs": "*", "choices": None}, Option(0, None), id="any"),
        pytest.param({"nargs": "+", "choices": None}, Option(1, None), id="some"),
        pytest.param({"nargs": "A...", "choices": None}, Option(0, None), id="not-known-to-us"),
        pytest.param({"nargs": [1], "choices": "ab"}, Option(0, None), id="of-another-kind"),
        pytest.param({"nargs": None, "choices": ["a", "b"]}, Option(1, 1, ("a", "b")), id="choices"),
        pytest.param({"nargs": None, "choices": ["a", 1]}, Option(1, 1), id="odd-choices"),
        pytest.param({"nargs": None, "choices": ["\x1b[2J"]}, Option(1, 1), id="choice-for-a-terminal"),
        pytest.param({}, Option(1, 1), id="nothing-said"),
    ],
)
def test_an_answer_is_read(said: dict[str, Any], option: Option) -> None:
    """The `nargs` of argparse as bounds; whatever is odd allows everything."""
    assert read_options(answer(**{"--x": said}))["--x"] == option


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(None, id="nothing"),
        pytest.param([], id="list"),
        pytest.param({"--x": {"nargs": None}}, id="not-all-of-them"),
        pytest.param(answer(**{"--x": 1}), id="not-described"),
    ],
)
def test_nonsense_is_no_answer(nonsense: object) -> None:
    """It would make every argument look wrong."""
    with pytest.raises(ValueError, match="answer"):
        read_options(nonsense)


def test_names_for_a_terminal_are_dropped() -> None:
    """A name could otherwise reach the operator's screen in a hint."""
    assert "--\x1b[2J" not in read_options(answer(**{"--\x1b[2J": {"nargs": None}}))
