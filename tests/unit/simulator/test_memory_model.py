"""The memory of a pretended card."""

from __future__ import annotations

import re

import pytest

from vllm_supervisor.simulator import memory, settings
from vllm_supervisor.simulator.flags import parse, version
from vllm_supervisor.simulator.generations import generation
from vllm_supervisor.simulator.service import resolve
from vllm_supervisor.simulator.start import Start, plan
from vllm_supervisor.simulator.wording import load

RELEASES = ("0.8.5", "0.12.0", "0.21.0", "0.32.0")


def scenario(name: str) -> tuple[dict[str, str], str]:
    """A scenario as the documentation gives it: its variables and its arguments."""
    text = re.search(rf"^    {name} +((?:.+\n)+?)(?=    \w|\n)", settings.__doc__ or "", re.MULTILINE)
    assert text is not None
    words = text[1].split()
    pairs = [word.partition("=") for word in words if word.startswith("SIM_")]
    rest = [word for word in words if not word.startswith("SIM_")]
    return {variable: value for variable, _, value in pairs}, " ".join(["m", *rest])


SEED, SEED_ARGUMENTS = scenario("seed")
SMALL, SMALL_ARGUMENTS = scenario("single-card")
EXHAUSTED, EXHAUSTED_ARGUMENTS = scenario("exhausted")


def planned(environment: dict[str, str], arguments: str, *more: str) -> Start:
    """A start, as far as it can be known before it happens."""
    chosen = settings.from_environment(environment)
    known = generation(chosen.vllm_version)
    line = parse([*arguments.split(), *more], version(chosen.vllm_version))
    return plan(chosen, known, load(known.release), resolve(line, chosen, known))


def fits(environment: dict[str, str], arguments: str, seqs: int | None) -> bool:
    """Whether the sampler's warm-up would pass."""
    more = () if seqs is None else ("--max-num-seqs", str(seqs))
    return memory.first_shortage(planned(environment, arguments, *more).layout) is None


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("seqs", "passes"),
    [pytest.param(None, False, id="unset"), (1024, False), (512, False), (256, True), (128, True)],
)
def test_the_seed_scenario(release: str, seqs: int | None, passes: bool) -> None:
    """200,064 tokens, TP 4, 131,072 context, 0.95 utilization: fails at the default and at 512, serves at 256."""
    assert fits(SEED | {"SIM_VLLM_VERSION": release}, SEED_ARGUMENTS, seqs) is passes


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("seqs", "passes"), [(1024, False), (512, True)])
def test_the_single_card_scenario(release: str, seqs: int, passes: bool) -> None:
    """One card of 24 GiB: fails at 1024, serves at 512."""
    assert fits(SMALL | {"SIM_VLLM_VERSION": release}, SMALL_ARGUMENTS, seqs) is passes


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("seqs", [None, 64, 16, 8])
def test_the_exhausted_scenario(release: str, seqs: int | None) -> None:
    """Next to nothing is free, so that no floor in use helps."""
    assert not fits(EXHAUSTED | {"SIM_VLLM_VERSION": release}, EXHAUSTED_ARGUMENTS, seqs)


@pytest.mark.parametrize(("environment", "arguments"), [(SEED, SEED_ARGUMENTS), (SMALL, SMALL_ARGUMENTS)])
@pytest.mark.parametrize("release", RELEASES)
def test_the_sizes_of_a_failure_add_up(release: str, environment: dict[str, str], arguments: str) -> None:
    """Capacity is free plus in use; in use is allocated, reserved, and what is not torch's."""
    start = planned(environment | {"SIM_VLLM_VERSION": release}, arguments, "--max-num-seqs", "1024")
    shortage = memory.first_shortage(start.layout)
    assert shortage is not None

    text = memory.out_of_memory(start.layout, shortage, gpu=1)
    numbers = re.findall(r"([\d.]+) (GiB|MiB)", text)
    tried, capacity, free, in_use, allocated, _graphs, reserved = (
        float(number) / (1024 if unit == "MiB" else 1) for number, unit in numbers
    )

    assert tried > free
    assert capacity == pytest.approx(free + in_use, abs=0.02)
    assert in_use == pytest.approx(allocated + reserved + float(environment["SIM_OUTSIDE_GIB"]), abs=0.02)


def test_halving_gives_the_profiled_saving_to_the_kv_cache() -> None:
    """While the sampler is the profiled peak, what it no longer needs becomes cache, and headroom stays."""
    v1 = SMALL | {"SIM_RUNNER": "v1"}
    large, small = (planned(v1, SMALL_ARGUMENTS, "--max-num-seqs", seqs).layout for seqs in ("1024", "900"))

    assert small.kv_cache > large.kv_cache
    assert small.free == large.free


def test_runner_v2_does_not_profile_the_sampler() -> None:
    """Which is why its warm-up can fail although the profile passed."""
    peaks = {
        runner: planned(SMALL | {"SIM_RUNNER": runner}, SMALL_ARGUMENTS, "--max-num-seqs", "1024").layout.peak
        for runner in ("v1", "v2")
    }

    assert peaks["v2"] == int(1.4 * memory.GIB) < peaks["v1"]


@pytest.mark.parametrize(
    ("runner", "seqs", "batched", "batch"),
    [("v1", 1024, 8192, 1024), ("v1", 1024, 512, 512), ("v2", 1024, 8192, 1024), ("v2", 1024, 1024, 512)],
)
def test_the_warm_up_batch(runner: str, seqs: int, batched: int, batch: int) -> None:
    """The batched tokens bound it; runner v2 spends two on each sequence."""
    assert memory.warm_up_batch(runner, seqs, batched) == batch


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (1018, "1018 bytes"),
        (1536, "1.50 KiB"),
        (819_462_144, "781.50 MiB"),
        (int(79.25 * memory.GIB), "79.25 GiB"),
    ],
)
def test_sizes_are_printed_as_torch_does(amount: int, text: str) -> None:
    """Four units, two decimals, whole bytes."""
    assert memory.size(amount) == text


def test_large_requests_are_rounded_as_torch_does() -> None:
    """298 MiB for 256 x 151,936 indices of 8 bytes, as in public reports."""
    start = planned({"SIM_SAMPLER_BYTES": "8", "SIM_OUTSIDE_GIB": "6.3"}, "m", "--max-num-seqs", "256")

    shortage = memory.first_shortage(start.layout)

    assert shortage is not None
    assert memory.size(shortage.asked) == "298.00 MiB"
