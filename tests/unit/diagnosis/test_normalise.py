"""What is left of a line when its prefix, colours and header are gone."""

from __future__ import annotations

import json

import pytest

from vllm_supervisor.diagnosis.normalise import LINE_LIMIT, Line, Raised, lines, quote, raised

SAID = "RuntimeError: no"
HEAD = "ERROR 11-29 15:09:08 [core.py:1510] "

PREFIXES = [
    pytest.param("ERROR 03-01 10:00:00 engine.py:366] ", "", "", id="P0-v0-engine"),
    pytest.param("(VllmWorkerProcess pid=7) ERROR 03-01 10:00:00 x.py:366] ", "VllmWorkerProcess", "7", id="P0-worker"),
    pytest.param(HEAD, "", "", id="P1-engine"),
    pytest.param("(VllmWorker rank=1 pid=7) " + HEAD, "VllmWorker", "7", id="P1-worker"),
    pytest.param("(EngineCore_0 pid=7) " + HEAD, "EngineCore_0", "7", id="P2"),
    pytest.param("(Worker_DP0_TP0_EP0 pid=7) " + HEAD, "Worker_DP0_TP0_EP0", "7", id="P3"),
    pytest.param("(EngineCore pid=7) " + HEAD, "EngineCore", "7", id="P4"),
    pytest.param("(RayWorkerWrapper pid=7, ip=10.0.0.2) " + HEAD, "RayWorkerWrapper", "7", id="P5-ray"),
    pytest.param("(RayWorkerWrapper pid=7, ip=fe80::1) " + HEAD, "RayWorkerWrapper", "7", id="P5-ray-ipv6"),
    pytest.param("(APIServer pid=6) (DPEngineCoreActor pid=7) " + HEAD, "DPEngineCoreActor", "7", id="P5-nested"),
    pytest.param(
        "\x1b[0;36m(EngineCore_DP0 pid=7)\x1b[0;0m \x1b[31mERROR\x1b[0m \x1b[90m01-26 09:25:37\x1b[0m [c.py:9]\x1b[0m ",
        "EngineCore_DP0",
        "7",
        id="P6-colours",
    ),
    pytest.param(
        "INFO 2025-11-19T20:16:36.09Z [resource.labels.containerName: vllm] (EngineCore pid=7) " + HEAD,
        "EngineCore",
        "7",
        id="P7-collector",
    ),
    pytest.param("Feb 22 06:55:47 host VLLM::EngineCor[7]: " + HEAD, "VLLM::EngineCor", "7", id="P8-short"),
    pytest.param("2025-11-19T20:16:36+0100 host env[7]: " + HEAD, "env", "7", id="P8-short-iso"),
    pytest.param("2025-11-19T20:16:36.094718273Z stderr F (Worker pid=7) " + HEAD, "Worker", "7", id="containerd"),
    pytest.param("vllm-1  | (Worker pid=7) " + HEAD, "Worker", "7", id="compose"),
    pytest.param("[rank3]: " + HEAD, "", "", id="torchrun"),
    pytest.param("[prod-a]" + HEAD, "", "", id="own-prefix"),
    pytest.param("[prod-a](EngineCore pid=7) " + HEAD, "EngineCore", "7", id="own-prefix-of-0.31"),
    pytest.param(
        "(EngineCore pid=7) ERROR 11-29 15:09:08.123 [v1/engine/core.py:1510] ", "EngineCore", "7", id="debug-path"
    ),
    pytest.param("(APIServer pid=7) ERROR:    ", "APIServer", "7", id="uvicorn"),
]


@pytest.mark.parametrize(("prefix", "process", "pid"), PREFIXES)
@pytest.mark.parametrize("encode", [str, str.encode], ids=["text", "bytes"])
def test_a_prefix_is_taken_off(prefix: str, process: str, pid: str, encode: type):
    """Each generation's prefix gives process, pid and level, and leaves what was said."""
    assert list(lines(encode(prefix + SAID))) == [Line(process, pid, "ERROR", SAID)]


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        pytest.param('  File "x.py", line 1, in f', '  File "x.py", line 1, in f', id="indentation-stays"),
        pytest.param("said\r\n", "said", id="crlf"),
        pytest.param("said \t\0", "said", id="trailing-blanks-and-nul"),
        pytest.param("\r 10%\r 20%\r 30%", " 30%", id="last-redraw-of-a-bar"),
        pytest.param(
            "WorkerProc hit an exception. [repeated 30x across cluster]", "WorkerProc hit an exception.", id="ray"
        ),
        pytest.param("\x1b]0;title\x07said", "said", id="terminal-title"),
        pytest.param(
            "Note: ERROR 11-29 15:09:08 [core.py:1] said", "Note: ERROR 11-29 15:09:08 [core.py:1] said", id="quoted"
        ),
        pytest.param("x 2025-11-19T20:16:36Z said", "x 2025-11-19T20:16:36Z said", id="a-stamp-inside"),
    ],
)
def test_a_line_without_a_level(printed: str, text: str):
    """Printed past the logger: as it is, less what terminals and collectors add."""
    assert list(lines(printed)) == [Line("", "", "", text)]


def test_a_print_glued_to_a_progress_bar_is_a_line_of_its_own():
    """The cursor stays at the end of the bar, and the next print goes on there."""
    bar = "Capturing:  46%|####6     | 31/67 [00:05<00:06,  5.50it/s]"
    assert [line.text for line in lines(f"\r{bar}(Worker pid=7) {HEAD}{SAID}")] == [bar, SAID]


def test_a_carriage_return_does_not_uncover_a_quoted_line():
    """A record keeps its level to the end: what follows a CR in it is still its text."""
    (line,) = lines("(APIServer pid=7) INFO 11-29 15:09:08 [logger.py:39] prompt: 'x\rRuntimeError: y'")
    assert (line.level, line.is_error) == ("INFO", False)


def test_a_record_in_json_gives_its_message_and_its_traceback():
    """The JSON formatter of vLLM puts the traceback into one field."""
    record = {
        "levelname": "ERROR",
        "processName": "EngineCore",
        "process": 7,
        "message": "failed",
        "exc_info": f"T\n{SAID}",
    }
    said = list(lines(json.dumps(record)))
    assert said == [Line("EngineCore", "7", "ERROR", text) for text in ("failed", "T", SAID)]


@pytest.mark.parametrize(
    "text", ["{", '{"a": 1}', '{"log": 5}', "[" * 9000, '{"message": "x"}', '{"levelname": 1, "message": 2}']
)
def test_json_that_is_no_record_is_text(text: str):
    """Anything else in braces stays as it is."""
    assert [line.text for line in lines(text)] == [text]


def test_no_more_of_a_line_is_read_than_needed():
    """A megabyte of prompt costs no more than a journald line."""
    (line,) = lines("x" * 1_000_000)
    assert len(line.text) == LINE_LIMIT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("torch.OutOfMemoryError: CUDA", Raised("OutOfMemoryError", "CUDA"), id="modules-go"),
        pytest.param("Exception: x", Raised("Exception", "x"), id="shortest-class"),
        pytest.param("MemoryError", Raised("MemoryError", ""), id="no-message"),
        pytest.param("pynvml.NVMLError_Unknown: x", Raised("NVMLError_Unknown", "x"), id="class-with-a-suffix"),
        pytest.param(
            "RuntimeError: Worker failed with error 'CUDA out', please check the stack trace above for the root cause",
            Raised("", "CUDA out", relayed=True),
            id="relayed",
        ),
        pytest.param("Value: x", None, id="no-exception"),
        pytest.param("said RuntimeError: x", None, id="inside-a-sentence"),
        pytest.param(" RuntimeError: x", None, id="indented"),
    ],
)
def test_the_last_line_of_a_traceback(text: str, expected: Raised | None):
    """Class and message apart; what only mentions an exception is none."""
    assert raised(text) == expected


def test_any_class_ends_an_open_traceback():
    """Not every exception's name says that it is one."""
    assert raised("jinja2.Undefined: x", in_traceback=True) == Raised("Undefined", "x")
    assert raised("jinja2.Undefined: x") is None


def test_a_quote_fits_a_screen():
    """One line, cut with a sign that it was."""
    assert quote("  a\n  b  ", 500) == "a b"
    assert quote("x" * 600, 500) == "x" * 499 + "…"
