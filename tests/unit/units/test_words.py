"""Quoting, as far as it can be judged without systemd; tests/live/test_quoting.py asks a real one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.errors import ConfigError
from vllm_supervisor.units import environment_assignment, exec_word

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"))


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        pytest.param("--max-num-seqs", "--max-num-seqs", id="plain"),
        pytest.param("org/Model-2.5_x@y:z,w=v+", "org/Model-2.5_x@y:z,w=v+", id="plain-signs"),
        pytest.param("", '""', id="empty"),
        pytest.param("a b", '"a b"', id="space"),
        pytest.param(";", '";"', id="command-separator"),
        pytest.param("#x", '"#x"', id="comment-sign"),
        pytest.param("100%", '"100%%"', id="specifier"),
        pytest.param("$HOME", '"$$HOME"', id="variable"),
        pytest.param("a\\b", '"a\\\\b"', id="backslash"),
        pytest.param("it's", '"it\'s"', id="single-quote"),
        pytest.param('{"a": 1}', "'{\"a\": 1}'", id="json"),
        pytest.param("'\"", '"\'\\""', id="both-quotes"),
        pytest.param("é漢", '"é漢"', id="letters-of-the-world"),
        pytest.param("a\tb\r\x1b", '"a\\x09b\\x0d\\x1b"', id="control-characters"),
        pytest.param("\u2028\u202e", '"\\u2028\\u202e"', id="invisible"),
        pytest.param("\U000e0001", '"\\U000e0001"', id="invisible-beyond-16-bits"),
    ],
)
def test_a_word(word: str, quoted: str) -> None:
    assert exec_word(word) == quoted


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        pytest.param("/var/lib/vllm", "X=/var/lib/vllm", id="plain"),
        pytest.param("", "X=", id="empty"),
        pytest.param("$HOME 100%", '"X=$HOME 100%%"', id="a-dollar-means-nothing-here"),
        pytest.param('a"b', "'X=a\"b'", id="quote"),
    ],
)
def test_a_variable(value: str, quoted: str) -> None:
    assert environment_assignment("X", value) == quoted


@pytest.mark.parametrize("text", ["a\nb", "a\0b", "\ud800"], ids=["newline", "nul", "half-a-pair"])
def test_what_no_line_can_hold_is_refused(text: str) -> None:
    for quote in (exec_word, lambda value: environment_assignment("X", value)):
        with pytest.raises(ConfigError, match="cannot put"):
            quote(text)


@given(TEXT)
def test_a_quoted_word_is_one_visible_line(text: str) -> None:
    """No line break of any kind, nothing that a terminal would act on, and it can be written as UTF-8."""
    quoted = exec_word(text)

    assert quoted.isprintable()
    assert len(quoted.splitlines()) == 1
    assert quoted.encode().decode() == quoted


@given(TEXT, TEXT)
def test_different_words_stay_different(one: str, other: str) -> None:
    assert (exec_word(one) == exec_word(other)) == (one == other)
