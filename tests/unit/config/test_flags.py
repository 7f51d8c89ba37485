"""Which flags may stand under `arguments:`, in every spelling that vLLM's parser would take."""

from __future__ import annotations

import pytest

from vllm_supervisor.config import flags

OWNED = {"max-num-seqs": "`max_num_seqs:`", "port": "`port:`", "host": "`host:`", "model": "`model:`"}


def spellings(flag: str) -> list[str]:
    """As argparse and vLLM on top of it would all take them for the flag."""
    underscored = flag.replace("-", "_")
    return [flag, underscored, f"--{flag}", f"--{underscored}", f"-{flag}", f"{flag}=4", f"--{flag}=4", f" {flag}"]


@pytest.mark.parametrize(("flag", "key"), OWNED.items(), ids=OWNED)
def test_a_flag_with_a_key_of_its_own_is_refused_in_every_spelling(flag: str, key: str) -> None:
    for spelling in spellings(flag):
        found = flags.complaint(spelling)
        assert found, spelling
        assert key in found[1]


@pytest.mark.parametrize(("flag", "key"), OWNED.items(), ids=OWNED)
def test_and_so_is_every_beginning_of_it(flag: str, key: str) -> None:
    """An argument parser takes an unambiguous beginning for the flag; an ambiguous one it would refuse anyway."""
    for end in range(1, len(flag)):
        if not flag[:end].endswith("-"):
            assert flags.complaint(flag[:end]) is not None, flag[:end]


@pytest.mark.parametrize(
    ("key", "message", "hint"),
    [
        pytest.param("--enforce-eager", "without leading dashes", "write `enforce-eager: VALUE`", id="dashes"),
        pytest.param("seed=1", "without `=`", "write `seed: VALUE`", id="equals"),
        pytest.param("tp", "a short option", "write `tensor-parallel-size`", id="short"),
        pytest.param("-tp", "a short option", "write `tensor-parallel-size`", id="short-with-dash"),
        pytest.param(
            "tensor-par", "an abbreviation of `tensor-parallel-size`", "write `tensor-parallel-size`", id="abbreviation"
        ),
        pytest.param(
            "no-enable-chunked-prefill",
            "is off is written as false",
            "write `enable-chunked-prefill: false`",
            id="negated",
        ),
        pytest.param("Seed", "not the name of a flag", "as `vllm serve --help` does", id="capital"),
        pytest.param("max model len", "not the name of a flag", "as `vllm serve --help` does", id="spaces"),
        pytest.param("uds", "nothing can tell when the service is ready", "serve on `host:` and `port:`", id="socket"),
        pytest.param("grpc", "nothing can tell when the service is ready", "remove it", id="no-http"),
        pytest.param("api_key", "every user of the host can read a secret", "credentials", id="secret"),
        pytest.param("max-num-seqs.x", "it has a key of its own", "`max_num_seqs:`", id="dotted"),
    ],
)
def test_a_complaint(key: str, message: str, hint: str) -> None:
    found = flags.complaint(key)

    assert found
    assert message in found[0]
    assert hint in found[1]


@pytest.mark.parametrize(
    "key",
    [
        "max-model-len",
        "max-num-batched-tokens",
        "max-num-active-seqs",
        "config-format",
        "model-impl",
        "portable",
        "hostname",
        "data-parallel-size",
        "compilation-config.pass_config.fuse_norm_quant",
        "h11-max-header-count",
        "nnodes",
        "a-flag-of-next-year",
    ],
)
def test_any_other_flag_passes(key: str) -> None:
    """Also one that begins like an owned flag, or that no vLLM has yet."""
    assert flags.complaint(key) is None


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("max_model_len", "max-model-len"),
        ("compilation_config.pass_config.x_y", "compilation-config.pass_config.x_y"),
        ("device-memory-utilization", "gpu-memory-utilization"),
    ],
)
def test_one_flag_has_one_name(written: str, normal: str) -> None:
    """Underscores are dashes up to the first dot, as for vLLM; of two names the older one."""
    assert flags.normal(written) == normal
