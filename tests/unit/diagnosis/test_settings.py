"""Which max_num_seqs a run had."""

from __future__ import annotations

import pytest

from vllm_supervisor.diagnosis.settings import Settings


def settings(*log: str, stamped: int | None = None) -> Settings:
    found = Settings(stamped)
    for line in log:
        found.read(line)
    return found


def given(arguments: str) -> str:
    return "non-default args: {'model': 'm', " + arguments + "}"


def chunked(tokens: int) -> str:
    return f"Chunked prefill is enabled with max_num_batched_tokens={tokens}."


@pytest.mark.parametrize(
    ("known", "version", "capacity", "seqs"),
    [
        pytest.param(settings(stamped=64), "", None, 64, id="stamp"),
        pytest.param(settings(given("'max_num_seqs': 48"), stamped=64), "", None, 64, id="stamp-before-arguments"),
        pytest.param(settings(given("'max_num_seqs': 48")), "", 79.0, 48, id="arguments-before-defaults"),
        pytest.param(settings(given("'max_num_seqs': 512, 'max_num_batched_tokens': 300")), "", None, 300, id="capped"),
        pytest.param(settings(given("'x': 1"), chunked(2048)), "", None, 256, id="small-row"),
        pytest.param(settings(given("'x': 1"), chunked(8192)), "", 23.0, 1024, id="large-row-before-capacity"),
        pytest.param(settings(given("'x': 1"), chunked(16384)), "", None, 1024, id="largest-row"),
        pytest.param(settings(given("'performance_mode': 'throughput'"), chunked(16384)), "", None, 2048, id="doubled"),
        pytest.param(
            settings(given("'max_num_batched_tokens': 8192"), chunked(8192)), "", 23.0, 256, id="tokens-were-given"
        ),
        pytest.param(settings(chunked(5000)), "", 139.8, 1024, id="odd-tokens-then-capacity"),
        pytest.param(settings(), "", 23.57, 256, id="small-card"),
        pytest.param(settings(), "", 95.0, 1024, id="large-card"),
        pytest.param(settings(), "", 79.25, 1024, id="h100"),
        pytest.param(Settings(None, small_default=True), "", 79.25, 256, id="a100-known-by-its-name"),
        pytest.param(Settings(64, small_default=True), "", 79.25, 64, id="the-stamp-before-the-name"),
        pytest.param(settings(), "0.8.1", None, 1024, id="1024-everywhere-once"),
        pytest.param(settings(), "0.8.5", None, None, id="nothing-tells"),
        pytest.param(
            settings(given("'served_model_name': \"x 'max_num_seqs': 4\"")), "", None, None, id="quoted-in-a-value"
        ),
    ],
)
def test_what_was_in_effect(known: Settings, version: str, capacity: float | None, seqs: int | None):
    """Stamp, then arguments, then the row of vLLM's table that the batched tokens tell, then the card."""
    assert known.effective(version, capacity) == seqs


def test_the_failing_line_itself_comes_first():
    """N in the sentence is what ran, whatever was asked for."""
    assert settings(stamped=1024).tried({"dummy_requests_seqs": 512.0}, "") == 512
    assert settings(stamped=1024).tried({"tried_seqs": 256.0}, "") == 256


def test_the_cards_size_is_taken_from_torchs_message():
    """The only hint when the log was reduced to errors."""
    assert settings().tried({"total_gib": 14.57}, "") == 256
