"""The `SIM_` variables, and what a command line amounts to with them."""

from __future__ import annotations

import re

import pytest

from vllm_supervisor.simulator import settings
from vllm_supervisor.simulator.flags import parse
from vllm_supervisor.simulator.generations import generation
from vllm_supervisor.simulator.service import Service, ValidationError, resolve, validate


def service(arguments: str = "m", **environment: str) -> Service:
    """A service of release 0.32.0 unless the environment says otherwise."""
    chosen = settings.from_environment({f"SIM_{name.upper()}": value for name, value in environment.items()})
    return resolve(parse(arguments.split(), (0, 12)), chosen, generation(chosen.vllm_version))


def test_the_table_of_variables_is_complete() -> None:
    """Every setting is documented, with its default where that is a number."""
    rows = dict(re.findall(r"^\| `SIM_([A-Z_]+)` \| (.*?) \|", settings.__doc__ or "", re.MULTILINE))

    assert {name.lower() for name in rows} == set(settings.Settings._fields)
    for name, default in rows.items():
        if re.fullmatch(r"[\d.]+", default) and name != "VLLM_VERSION":
            assert float(default) == float(settings.Settings._field_defaults[name.lower()])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SIM_GPU_GB", "80"),
        ("SIM_GPU_GIB", "big"),
        ("SIM_RUNNER", "v3"),
        ("SIM_IGNORE_TERM", "yes"),
        ("SIM_FAULT", "bad-luck"),
        ("SIM_FAULT", "mamba"),
    ],
)
def test_a_setting_it_cannot_use_is_refused(name: str, value: str) -> None:
    """A misspelt variable must not silently give another scenario."""
    with pytest.raises(settings.SettingsError, match=f"cannot use {name}"):
        settings.from_environment({name: value})


@pytest.mark.parametrize(
    ("arguments", "environment", "seqs", "batched"),
    [
        pytest.param("m", {}, 1024, 8192, id="80-gib"),
        pytest.param("m", {"gpu_gib": "23.57"}, 256, 2048, id="24-gib"),
        pytest.param("m", {"gpu_name": "NVIDIA A100-SXM4-80GB"}, 256, 2048, id="a100-is-spared"),
        pytest.param("m", {"gpu_name": "NVIDIA A100-SXM4-80GB", "vllm_version": "0.8.5"}, 1024, 8192, id="not-in-0.8"),
        pytest.param("m", {"gpu_gib": "178"}, 1024, 16384, id="178-gib"),
        pytest.param("m", {"gpu_gib": "178", "vllm_version": "0.27.1"}, 1024, 8192, id="178-gib-before-0.28"),
        pytest.param("m --max-num-seqs 16", {}, 16, 8192, id="given"),
        pytest.param("m --max-num-batched-tokens 512", {}, 512, 512, id="default-gives-way"),
        pytest.param("m --max-num-seqs 4 --max-model-len 512", {}, 4, 2048, id="short-context"),
    ],
)
def test_batch_sizes(arguments: str, environment: dict[str, str], seqs: int, batched: int) -> None:
    """The default rule of vLLM."""
    found = service(arguments, **environment)

    assert (found.max_num_seqs, found.max_num_batched_tokens) == (seqs, batched)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("m --max-num-seqs 0", "Input should be greater than or equal to 1"),
        (
            "m --max-num-seqs 1024 --max-num-batched-tokens 512",
            r"max_num_batched_tokens \(512\) must be greater than or equal to max_num_seqs \(1024\)",
        ),
    ],
)
def test_invalid_combinations(arguments: str, message: str) -> None:
    """In pydantic's words."""
    with pytest.raises(ValidationError, match=message):
        validate(service(arguments))


@pytest.mark.parametrize("arguments", ["m --runner pooling", "m --task embed"])
def test_pooling(arguments: str) -> None:
    """Either spelling makes a pooling model."""
    assert service(arguments).pooling


def test_non_default_arguments() -> None:
    """The model twice, and only what differs from vLLM's defaults."""
    assert service("m --port 8000 --max-num-seqs 4").arguments == {"model_tag": "m", "model": "m", "max_num_seqs": 4}
