"""Any bytes in: no exception, no time that grows faster than the input, no verdict that colour could change."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.diagnosis.generations import (
    GENERATIONS,
    failed_alone,
    healthy,
    loading,
    oom,
    opening,
    sampler_v1,
    sampler_v2,
)
from vllm_supervisor.diagnosis import CATALOGUE, Catalogue, Tracker, Trackers, lines, read, read_text, worth_reading
from vllm_supervisor.diagnosis.normalise import raised

G = GENERATIONS["0.20-0.25"]
PIECES = sorted(
    {
        *(sample for rule in CATALOGUE for text in (*rule.samples, *rule.near_misses) for sample in text.split("\n")),
        *opening(G), *loading(G), *sampler_v1(512), *sampler_v2(oom()),
        "\r", "\x1b[31m", "\x1b[0m", "\0", "\x1b]", "(EngineCore pid=1) ", "ERROR 11-29 15:09:08 [a.py:1] ",
        "[rank0]: ", "2025-11-19T20:16:36Z ", "Feb 22 06:55:47 h v[1]: ", '{"log": "', '"}', "'", ": ",
        " " * 50, "9" * 50, "é", "\udcff",
    }
)  # fmt: skip

text_lines = st.lists(st.sampled_from(PIECES) | st.text(max_size=30), max_size=5).map("".join)
raw_lines = text_lines.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=120)


@settings(max_examples=300, deadline=None)
@given(st.lists(raw_lines | text_lines, max_size=25))
def test_a_tracker_takes_anything(log: list[bytes | str]):
    """No bytes, in no order, raise."""
    tracker = Tracker()
    for line in log:
        tracker.line(line)
        tracker.diagnosis()
    tracker.end()
    assert tracker.progress
    assert isinstance(tracker.evidence_complete, bool)


@settings(max_examples=200, deadline=None)
@given(raw_lines | text_lines)
def test_a_line_can_be_undressed_whatever_it_is(line: bytes | str):
    """And what is left is never longer than what there was."""
    for part in lines(line):
        assert len(part.text) <= max(len(line), 1) * 4
        raised(part.text, in_traceback=True)


@settings(max_examples=200, deadline=None)
@given(st.lists(raw_lines, max_size=12))
def test_a_log_in_no_format_can_be_read(log: list[bytes]):
    """Text, JSON, export or none of these."""
    trackers = Trackers()
    trackers.feed_all(read(log))
    for _, _, tracker in trackers:
        tracker.diagnosis()


COLOURS = ["\x1b[31m", "\x1b[0m", "\x1b[0;36m", "\x1b[1;31;40m", "\x1b[K"]
FAILURES = {
    "v1": failed_alone(G, sampler_v1(512)),
    "v2": failed_alone(G, sampler_v2(oom())),
    "healthy": healthy(G),
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FAILURES)), st.data())
def test_colour_changes_no_verdict(name: str, data: st.DataObject):
    """Wherever the codes are put."""
    log = FAILURES[name]
    plain, coloured = Tracker(), Tracker()
    for line in log:
        plain.line(line)
        shown = line
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(shown)))
            shown = shown[:at] + data.draw(st.sampled_from(COLOURS)) + shown[at:]
        coloured.line(shown)
    for tracker in (plain, coloured):
        tracker.end()
    want, got = plain.diagnosis(), coloured.diagnosis()
    assert (want and want.rule) == (got and got.rule)
    assert (want and want.tried) == (got and got.tried)


@pytest.mark.parametrize("noise", ["E", "Worker", "loading_done", "Finished: 3 of 4"])
def test_colour_makes_no_line_worth_reading(noise: str):
    """A word printed amid a traceback looks like the class that ends one; in colour it ends it no more than plain."""
    assert not worth_reading(f"(Worker pid=9) {noise}")
    for coloured in (f"\x1b[0;36m(Worker pid=9)\x1b[0;0m {noise}", f"\x1b[31m{noise}\x1b[0m"):
        assert not worth_reading(coloured)
        assert not worth_reading(coloured.encode())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([piece for piece in PIECES if "\n" not in piece]), max_size=6).map(" ".join))
def test_a_prompt_is_no_evidence(prompt: str):
    """Whatever a request holds, before ready or after: vLLM logs it with `%r`, at level INFO."""
    tracker = Tracker()
    for line in [*opening(G), *loading(G)]:
        tracker.line(line)
    assert (
        tracker.line(f"(APIServer pid=7) INFO 11-29 15:09:08 [logger.py:39] Received request x: prompt: {prompt!r}")
        is None
    )
    assert tracker.findings == ()


MEGABYTE = 1 << 20
LONG = {
    "prompt": "(APIServer pid=7) INFO 11-29 15:09:08 [logger.py:39] Received request x: prompt: '"
    + "RuntimeError: CUDA " * 60000,
    "error": "(APIServer pid=7) ERROR 11-29 15:09:08 [x.py:39] RuntimeError: " + "CUDA out of memory " * 60000,
    "spaces": " " * MEGABYTE,
    "letters": "a" * MEGABYTE,
    "dots": "a." * (MEGABYTE // 2) + "Error: x",
    "brackets": "(" * MEGABYTE,
    "escapes": "\x1b[" * (MEGABYTE // 2),
    "titles": "\x1b]" * (MEGABYTE // 2),
    "returns": "\r" * MEGABYTE,
    "bars": "Capturing CUDA graphs:  1%|" * (MEGABYTE // 27),
    "percents": "1%" * (MEGABYTE // 2),
    "frames": '  File "' + "/a" * (MEGABYTE // 2) + '", line 1, in f',
    "braces": "{" * MEGABYTE,
    "nested": '{"a":' * (MEGABYTE // 5),
    "newlines": "x\n" * (MEGABYTE // 2),
    "json": '{"log": "' + "RuntimeError: x\\n" * 60000 + '"}',
    "free-memory": "ValueError: Free memory on device " + "(1/1 GiB) on startup is less than " * 30000,
    "validation": "pydantic.ValidationError: " + "Model architectures " * 50000,
    "relayed": "RuntimeError: Worker failed with error '" + "', please check " * 60000,
    "digits": "ERROR 11-29 15:09:08 [x.py:1] " + "9" * MEGABYTE,
    "prefixes": "(A pid=1) " * 100000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_megabyte_in_one_line_is_quick(name: str):
    """Every pattern takes time linear in what it looks at, and that is bounded."""
    line = LONG[name]
    tracker = Tracker()
    for form in (line, line.encode()):
        began = time.process_time()
        for _ in range(3):
            tracker.line(form)
            tracker.diagnosis()
        assert time.process_time() - began < 1.5


def test_the_cost_of_a_line_does_not_grow_with_the_rules():
    """The rules that may apply are looked up by the words of the line, never tried one after the other."""
    few, many = CATALOGUE, Catalogue([*CATALOGUE, *_padding(2000)])
    message = oom().partition(": ")[2]
    assert many.candidates(message, "OutOfMemoryError") == few.candidates(message, "OutOfMemoryError")
    assert len(many.candidates("nothing of interest", "ValueError")) == 0


def _padding(number: int):
    from dataclasses import replace

    row = CATALOGUE["disk-full"]
    return [replace(row, id=f"padding-{n}", anchors=(f"word{n}",)) for n in range(number)]


def test_a_traceback_that_never_ends_costs_no_memory():
    """A process may print frames for ever."""
    tracker = Tracker()
    for number in range(5000):
        tracker.line(f'  File "/a/f{number}.py", line 1, in g{number}')
    assert len(tracker._traces.of("", "").frames) < 1100


def test_the_gate_rejects_what_a_served_model_prints():
    """More than 99 of 100 lines are looked at once and no more."""
    busy = [
        "(APIServer pid=7) INFO 11-29 15:22:11 [loggers.py:335] Engine 000: Avg prompt throughput: 2.0 tokens/s",
        'INFO:     127.0.0.1:59376 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        '(APIServer pid=7) INFO:     127.0.0.1:59376 - "GET /metrics HTTP/1.1" 200 OK',
        "\x1b[0;36m(APIServer pid=7)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-29 15:22:11\x1b[0m [logger.py:39] R",
        "(APIServer pid=7) DEBUG 11-29 15:22:11 [core.py:1] RuntimeError: not really",
        "(APIServer pid=7) WARNING 11-29 15:22:11 [core.py:1] torch.OutOfMemoryError: recovered",
        "INFO 03-01 10:00:00 metrics.py:455] Avg prompt throughput: 0.0 tokens/s",
    ]
    assert [line for line in busy if worth_reading(line) or worth_reading(line.encode())] == []


def test_plain_text_never_raises_over_odd_chunks():
    """A file may end without a newline, and hold blank lines."""
    assert len(list(read_text([b"", b"\n", b"x", b"\xff\n"]))) == 4
