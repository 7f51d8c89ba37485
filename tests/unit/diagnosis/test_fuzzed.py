"""What `./dev fuzz` does with an input, done with its seeds and some that are hostile; atheris finds more."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis import fuzzed
from vllm_supervisor.diagnosis import CATALOGUE

SEEDS = dict(fuzzed.seeds())
SAMPLE = SEEDS["sampler-oom-0"]
HOSTILE = {
    "nothing": b"",
    "every byte": bytes(range(256)) * 4,
    "halves of characters": SAMPLE.replace(b"o", b"\xc3"),
    "no end of an escape sequence": b"\x1b]0;" + SAMPLE + b"\x1b[",
    "progress bars": SAMPLE.replace(b" ", b"\r"),
    "a line of 64 KiB": SAMPLE.replace(b"\n", b" ") + b"(EngineCore pid=1) " * 3200,
    "many lines": SAMPLE + b"ERROR 11-29 15:09:08 [a.py:1] \n" * 2000,
    "nested JSON": b'{"log": "' * 1000 + SAMPLE,
}


def test_each_rule_gives_seeds():
    """So that the fuzzer begins where the rules are."""
    assert {name.rpartition("-")[0] for name in SEEDS} == {rule.id for rule in CATALOGUE}


@pytest.mark.parametrize("data", [*SEEDS.values()], ids=[*SEEDS])
def test_a_seed_is_taken(data):
    fuzzed.one(data)


@pytest.mark.parametrize("data", [*HOSTILE.values()], ids=[*HOSTILE])
def test_hostile_input_is_taken(data):
    fuzzed.one(data)


def test_what_takes_too_long_is_told():
    """Else the fuzzer would find nothing that is slow."""
    with pytest.raises(AssertionError, match="too slow"):
        fuzzed.one(SAMPLE, slowest_s=0.0)
