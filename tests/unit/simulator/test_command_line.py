"""Reading what follows `vllm serve`."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_supervisor.simulator.flags import UsageError, parse, version

NEWEST = (0, 32, 0)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        pytest.param("m --max-num-seqs 256", {"max_num_seqs": 256}, id="two-words"),
        pytest.param("m --max-num-seqs=256", {"max_num_seqs": 256}, id="equals"),
        pytest.param("m --max_num_seqs 256", {"max_num_seqs": 256}, id="underscores"),
        pytest.param("m --max-num-seqs 8 --max-num-seqs 4", {"max_num_seqs": 4}, id="last-wins"),
        pytest.param("m --max-num-se 256", {"max_num_seqs": 256}, id="abbreviated"),
        pytest.param("m -tp 4", {"tensor_parallel_size": 4}, id="alias"),
        pytest.param("m --max-model-len 128K", {"max_model_len": 131072}, id="human-1024"),
        pytest.param("m --max-model-len 128k", {"max_model_len": 128000}, id="human-1000"),
        pytest.param("m --gpu-memory-utilization 0.95", {"gpu_memory_utilization": 0.95}, id="float"),
        pytest.param("m --enforce-eager", {"enforce_eager": True}, id="switch"),
        pytest.param("m --no-enable-prefix-caching", {"enable_prefix_caching": False}, id="switch-off"),
        pytest.param("m --served-model-name a b --port 1", {"served_model_name": ["a", "b"], "port": 1}, id="list"),
        pytest.param('m --override-generation-config {"k":1}', {"override_generation_config": {"k": 1}}, id="json"),
        pytest.param("m --compilation-config.level 3", {"compilation_config": {"level": "3"}}, id="dotted"),
        pytest.param("m --kv-cache-memory-bytes 4G", {"kv_cache_memory_bytes": 4 << 30}, id="bytes"),
    ],
)
def test_values(words: str, values: dict[str, Any]) -> None:
    """Every spelling of the real parser ends in the same value."""
    line = parse(words.split(), NEWEST)

    assert line.model == "m"
    assert line.values == values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param("m --max-num-seq-typo 4", "error: unrecognized arguments: --max-num-seq-typo 4", id="unknown"),
        pytest.param("m --nope=1 --port 1 -zz", "error: unrecognized arguments: --nope=1 -zz", id="two-unknown"),
        pytest.param("m extra", "error: unrecognized arguments: extra", id="second-model"),
        pytest.param("m --port", "serve: error: argument --port: expected one argument", id="value-missing"),
        pytest.param("m --port x", "serve: error: argument --port: invalid int value: 'x'", id="no-integer"),
    ],
)
def test_refusals(words: str, message: str) -> None:
    """In argparse's words."""
    with pytest.raises(UsageError) as refused:
        parse(words.split(), NEWEST)
    assert str(refused.value) == message


def test_an_ambiguous_abbreviation_is_refused() -> None:
    """The message names the candidates."""
    with pytest.raises(UsageError, match=r"serve: error: ambiguous option: --max-num could match .*--max-num-seqs"):
        parse(["m", "--max-num", "1"], NEWEST)


@pytest.mark.parametrize(
    ("flag", "last"),
    [("--swap-space=4", "0.17.1"), ("--disable-log-requests", "0.16.0"), ("--task=embed", "0.12.0")],
)
def test_retired_flags(flag: str, last: str) -> None:
    """A release accepts the flags it had, and a later one refuses them."""
    parse(["m", flag], version(last))
    with pytest.raises(UsageError):
        parse(["m", flag], NEWEST)


def test_values_come_in_the_parsers_order() -> None:
    """As `non-default args` prints them, whatever the order on the command line."""
    line = parse(["m", "--max-num-seqs=4", "--tensor-parallel-size=2", "--port=1"], NEWEST)

    assert list(line.values) == ["port", "tensor_parallel_size", "max_num_seqs"]
