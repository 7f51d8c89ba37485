"""The command line that a service comes to, and the fingerprint of what its memory use depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vllm_supervisor.config import Service
from vllm_supervisor.units import Cap, effective, fingerprint, serve_argv


def service(**values: Any) -> Service:
    return Service.model_validate(
        {"name": "a", "source": Path("x.yaml"), "model": "org/m", "executable": "/opt/vllm/bin/vllm", **values}
    )


def flags(**arguments: Any) -> list[str]:
    """The words that arguments come to, without those that every service has."""
    argv = serve_argv(service(arguments={key.replace("_", "-"): value for key, value in arguments.items()}), None)
    assert argv[:5] == ["/opt/vllm/bin/vllm", "serve", "org/m", "--port", "8000"]
    return argv[5:]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({"enforce_eager": True}, ["--enforce-eager"], id="on"),
        pytest.param({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"], id="off"),
        pytest.param({"disable_log_stats": False}, [], id="off-where-there-is-no-form-for-it"),
        pytest.param({"disable_log_stats": True}, ["--disable-log-stats"], id="on-one-way"),
        pytest.param({"max_model_len": 4096}, ["--max-model-len", "4096"], id="number"),
        pytest.param({"max_model_len": -1}, ["--max-model-len=-1"], id="negative"),
        pytest.param({"watermark": "-0.5"}, ["--watermark=-0.5"], id="negative-with-a-dot"),
        pytest.param({"tokenizer": "--x"}, ["--tokenizer=--x"], id="text-like-a-flag"),
        pytest.param({"chat_template": ""}, ["--chat-template", ""], id="empty"),
        pytest.param({"served_model_name": ["a", "b"]}, ["--served-model-name", "a", "b"], id="list"),
        pytest.param({"middleware": ["a", "b"]}, ["--middleware", "a", "--middleware", "b"], id="repeated"),
        pytest.param({"middleware": "a"}, ["--middleware", "a"], id="repeated-once"),
        pytest.param({"allowed_origins": ["*"]}, ["--allowed-origins", '["*"]'], id="json-list"),
        pytest.param({"lora_modules": [{"name": "n"}]}, ["--lora-modules", '{"name": "n"}'], id="list-of-mappings"),
        pytest.param(
            {"hf_overrides": {"é": [1, 0.5, None, True]}}, ["--hf-overrides", '{"é": [1, 0.5, null, true]}'], id="json"
        ),
        pytest.param({"cc.mode": 3}, ["--cc.mode", "3"], id="dotted"),
        pytest.param({"cc.fuse": False}, ["--cc.fuse", "false"], id="dotted-switch"),
        pytest.param({"cc.sizes": [1, 2]}, ["--cc.sizes", "[1, 2]"], id="dotted-list"),
        pytest.param(
            {"y": 1, "x": 2, "z.b": 3, "z.a": 4}, ["--x", "2", "--y", "1", "--z.a", "4", "--z.b", "3"], id="sorted"
        ),
    ],
)
def test_how_a_flag_is_written(arguments: dict[str, Any], words: list[str]) -> None:
    """Checked once by hand against the parser of vLLM 0.32.0; the golden case argument-forms holds them all."""
    assert flags(**arguments) == words


@pytest.mark.parametrize(
    ("declared", "cap", "value"),
    [(None, None, None), (1024, None, 1024), (None, 512, 512), (1024, 512, 512), (256, 512, 256), (512, 512, 512)],
)
def test_the_lower_of_declared_and_learned(declared: int | None, cap: int | None, value: int | None) -> None:
    learned = None if cap is None else Cap({"max-num-seqs": cap}, "")

    assert effective(service(max_num_seqs=declared), learned) == value
    tail = serve_argv(service(max_num_seqs=declared, host="::1"), learned)[5:]
    assert tail == ["--port", "8000"] + ([] if value is None else ["--max-num-seqs", str(value)])


BASE = {"arguments": {"max-model-len": 4096}, "environment": {"A": "1"}, "gpus": [0]}


@pytest.mark.parametrize(
    "change",
    [
        {"max_num_seqs": 64},
        {"port": 9000},
        {"host": "127.0.0.1"},
        {"name": "b"},
        {"source": Path("y.yaml")},
        {"user": "other"},
        {"start_timeout": 60},
        {"credentials": {"HF_TOKEN": "/x"}},
        {"remediation": {"floor": 16}},
        {"arguments": {"max-model-len": 4096, "served-model-name": "x"}},
        {"arguments": {"max-model-len": 4096, "uvicorn-log-level": "debug"}},
        {"arguments": {"max-model-len": 4096, "logging-config.level": "debug"}},
        {"environment": {"A": "1", "VLLM_LOGGING_LEVEL": "DEBUG"}},
    ],
    ids=str,
)
def test_a_cap_outlives_what_moves_no_memory(change: dict[str, Any]) -> None:
    assert fingerprint(service(**{**BASE, **change}), "0.32.0") == fingerprint(service(**BASE), "0.32.0")


@pytest.mark.parametrize(
    "change",
    [
        {"model": "org/other"},
        {"executable": "/opt/other/bin/vllm"},
        {"gpus": [1]},
        {"gpus": None},
        {"arguments": {"max-model-len": 8192}},
        {"arguments": {}},
        {"arguments": {"max-model-len": 4096, "a-flag-of-next-year": 1}},
        {"environment": {}},
        {"environment": {"A": "2"}},
    ],
    ids=str,
)
def test_a_cap_ends_with_what_moves_memory(change: dict[str, Any]) -> None:
    assert fingerprint(service(**{**BASE, **change}), "0.32.0") != fingerprint(service(**BASE), "0.32.0")


def test_a_cap_ends_with_the_version_of_vllm() -> None:
    prints = {fingerprint(service(**BASE), version) for version in ("0.32.0", "0.33.0", None)}

    assert len(prints) == 3
    assert all(len(print_) == 16 and int(print_, 16) >= 0 for print_ in prints)


def test_the_order_in_the_yaml_is_no_matter() -> None:
    one, other = {"y": "1", "x": {"a": 1, "b": 2}}, {"x": {"b": 2, "a": 1}, "y": "1"}

    assert fingerprint(service(arguments=one), None) == fingerprint(service(arguments=other), None)
