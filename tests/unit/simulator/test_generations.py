"""What each known release writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vllm_supervisor.simulator import failures, memory, wording
from vllm_supervisor.simulator.failures import FAULTS, VllmError
from vllm_supervisor.simulator.generations import generation
from vllm_supervisor.simulator.log import pieces
from vllm_supervisor.simulator.wording import Wording, load

RELEASES = ("0.8.5", "0.12.0", "0.21.0", "0.32.0")
CARD = memory.Card(80 << 30, 16 << 30, 2 << 30, 1 << 30, 6 << 30, 65536, 151936, (4, 4, 4))
LAYOUT = memory.lay_out(
    CARD, utilization=0.92, max_num_seqs=1024, sequences=1024, counts_graphs=True, profiles_sampler=True
)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("0.32.0", "0.32.0"),
        ("0.33.0", "0.32.0"),
        ("0.29.0", "0.21.0"),
        ("0.12.0.post2", "0.12.0"),
        ("0.11.2", "0.8.5"),
        ("0.7.3", "0.8.5"),
    ],
)
def test_the_nearest_older_release_is_used(asked: str, found: str) -> None:
    """Or the oldest there is."""
    assert generation(asked).release == found


@pytest.mark.parametrize("release", RELEASES)
def test_every_section_of_frames_can_be_printed(release: str) -> None:
    """Its own and those it includes."""
    text = Path(wording.__file__).with_name("generations").joinpath(f"{release}.txt").read_text(encoding="utf-8")
    sections = re.findall(r"^\[frames (.+)\]$", text, re.MULTILINE)

    assert len(sections) > 20
    for section in sections:
        assert load(release).traceback((section,), "Error: x")[1].startswith("  File ")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_sampler_warm_up_out_of_memory(release: str, runner: str) -> None:
    """Runner v1 writes the sentence below torch's error; v2 torch's error alone, with frames that tell."""
    shortage = memory.first_shortage(LAYOUT)
    assert shortage is not None

    lines = failures.sampler_shortage(LAYOUT, shortage, gpu=3, runner=runner).lines(load(release), "worker-rpc")

    text = "\n".join(lines)
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " in text
    assert "GPU 3 has a total capacity of 80.00 GiB of which " in text
    assert text.count("warming up sampler with 1024 dummy requests") == (runner == "v1")
    if runner == "v1":
        assert "in compile_or_warm_up_model" in text
        assert "in _dummy_sampler_run" in text
        assert "\n\nThe above exception was the direct cause of the following exception:\n\n" in text
    else:
        assert re.search(r"in warmup_kernels\n(.*\n)+.*, in sample_tokens\n(.*\n)+.*sampler\.py", text)


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("0.12.0", ["GPU KV cache size: 643,232 tokens", "Maximum concurrency for 131,072 tokens per request: 4.91x"]),
        ("0.32.0", ["GPU KV cache size: 643,232 tokens, Maximum concurrency for 131,072 tokens per request: 4.91x"]),
    ],
)
def test_the_kv_cache_lines(release: str, line: list[str]) -> None:
    """Two lines in the old releases, one in the new."""
    lines = load(release).lines("kv-cache", kv_cache_tokens=643232, max_model_len=131072, concurrency=4.907)

    assert [text for _, _, text in lines] == line


def test_frames_are_printed_as_python_does() -> None:
    """Path, source, and carets under the marked part; a frame without source has one line."""
    known = Wording(
        "[lines]\n", "[frames a]\nvllm/x.py:7 f | y = «g(1)» + 2\nuvloop/loop.pyx:9 run\npython/b.py:1 h | z\n"
    )

    assert known.traceback(("a",), "ValueError: no") == [
        "Traceback (most recent call last):",
        '  File "/opt/vllm/lib/python3.12/site-packages/vllm/x.py", line 7, in f',
        "    y = g(1) + 2",
        "        ^^^^",
        '  File "uvloop/loop.pyx", line 9, in run',
        '  File "/usr/lib/python3.12/b.py", line 1, in h',
        "    z",
        "ValueError: no",
    ]


@pytest.mark.parametrize(
    ("lines", "sizes"),
    [
        pytest.param([100] * 3, [300], id="all-in-one"),
        pytest.param([3000, 1000, 97, 1], [4000, 98], id="whole-lines-only"),
        pytest.param([10, 5000, 10], [10, 5000, 10], id="a-long-line-alone"),
    ],
)
def test_output_leaves_in_pieces_a_pipe_takes_undivided(lines: list[int], sizes: list[int]) -> None:
    """Whole lines, at most 4096 bytes, so that processes that share a pipe never tear each other's lines."""
    data = b"".join(b"x" * (size - 1) + b"\n" for size in lines)

    assert [len(piece) for piece in pieces(data)] == sizes


def test_the_table_of_failures_is_complete() -> None:
    """What `SIM_FAULT` accepts is what the documentation lists."""
    listed = re.findall(r"^\| `([a-z-]+)(?::N)?` \|", failures.__doc__ or "", re.MULTILINE)

    assert tuple(listed) == FAULTS


def test_a_failure_keeps_its_cause_on_the_way_out() -> None:
    """The engine prints the same chain with more frames around it."""
    inner = VllmError(("sampler",), "RuntimeError: outer", cause=failures.Traceback(("sampler-call",), "E: inner"))

    outer = inner.within("process", "core")

    assert outer.cause == inner.cause
    assert outer.traceback.frames == ("process", "core", "sampler")
    assert outer.text == "outer"
