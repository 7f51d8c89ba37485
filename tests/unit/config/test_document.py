"""What a YAML text means here, and what is wrong with one that is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_supervisor.config.document import MAX_DEPTH, Flaw, parse

SYNTAX = "not YAML: while parsing a flow sequence, expected ',' or ']', but got ':'"


def value_of(text: str) -> Any:
    document = parse(text)
    assert document.flaws == ()
    return document.root.plain() if document.root else None


def flaws(text: str) -> list[tuple[int | None, str, str]]:
    return [(flaw.line, ".".join(flaw.path), flaw.message) for flaw in parse(text).flaws]


@pytest.mark.parametrize(
    ("written", "meaning"),
    [
        pytest.param("true", True, id="true"),
        pytest.param("FALSE", False, id="false"),
        pytest.param("", None, id="nothing"),
        pytest.param("~", None, id="tilde"),
        pytest.param("null", None, id="null"),
        pytest.param("8000", 8000, id="int"),
        pytest.param("-1", -1, id="negative"),
        pytest.param("0.95", 0.95, id="float"),
        pytest.param("1e-3", 1e-3, id="exponent"),
        pytest.param(".5", 0.5, id="float-without-a-zero"),
        pytest.param("'8000'", "8000", id="quoted-number"),
        pytest.param('"no"', "no", id="quoted-switch"),
        pytest.param("017", "017", id="not-octal"),
        pytest.param("0x1F", "0x1F", id="not-hexadecimal"),
        pytest.param("1_000", "1_000", id="not-a-number-with-underscores"),
        pytest.param("12:30", "12:30", id="not-base-60"),
        pytest.param("2026-11-29", "2026-11-29", id="not-a-date"),
        pytest.param("nope", "nope", id="not-a-switch"),
        pytest.param(".inf", ".inf", id="not-infinite"),
        pytest.param("1" * 30, "1" * 30, id="too-long-for-a-number"),
    ],
)
def test_a_plain_scalar(written: str, meaning: object) -> None:
    """YAML 1.2 where the versions differ."""
    found = value_of(f"key: {written}")["key"]

    assert found == meaning
    assert isinstance(found, bool) == isinstance(meaning, bool)


@pytest.mark.parametrize("written", ["0.950", "1e10", "+5", "1.10", "-0", "100000000000000000"])
def test_a_number_keeps_its_digits(written: str) -> None:
    number = value_of(f"key: {written}")["key"]

    assert str(number) == written
    assert number == float(written)


@pytest.mark.parametrize("written", ["yes", "No", "on", "OFF"])
def test_a_word_that_only_some_take_for_a_switch_is_refused(written: str) -> None:
    (flaw,) = parse(f"a:\n  b: {written}").flaws

    assert (flaw.line, flaw.path, flaw.value) == (2, ("a", "b"), written)
    assert f"'{written}'" in flaw.hint


@pytest.mark.parametrize(
    ("text", "line", "path", "message"),
    [
        pytest.param("a: 1\nb: 2\na: 3", 3, "a", "given twice, first in line 1", id="duplicate-key"),
        pytest.param("a:\n  x: 1\n  'x': 2", 3, "a.x", "given twice, first in line 2", id="duplicate-when-quoted"),
        pytest.param("a: &x 1", 1, "a", "an anchor (`&name`)", id="anchor"),
        pytest.param("a: *x", 1, "a", "an alias (`*name`)", id="alias"),
        pytest.param("a: !!python/name:x y", 1, "a", "a tag (tag:yaml.org,2002:python/name:x)", id="tag"),
        pytest.param("a: 1\n---\nb: 2", 2, "", "a second document begins here", id="second-document"),
        pytest.param("a:\n  ? [x, y]\n  : 1", 2, "a", "a key that is a list or a mapping", id="complex-key"),
        pytest.param("a: {{ model }}", 1, "a", "a key that is a list or a mapping", id="template-left-over"),
        pytest.param("a: [1\nb: 2", 2, "", SYNTAX, id="syntax"),
        pytest.param("a: \x01", 1, "", "not YAML: special characters are not allowed", id="control-character"),
        pytest.param("[" * 3000, 1, "0.0.0", f"more than {MAX_DEPTH} levels deep", id="deep"),
    ],
)
def test_a_flaw(text: str, line: int, path: str, message: str) -> None:
    assert (line, path, message) in flaws(text)


def test_tabs_get_a_hint() -> None:
    assert [flaw.hint for flaw in parse("a:\n\tb: 1").flaws] == ["indent with spaces, never with tabs"]


def test_all_flaws_at_once() -> None:
    """Reading goes on after a flaw that leaves the rest readable."""
    assert [line for line, _, _ in flaws("a: yes\nb: &x 1\nb: 2\nc: !t 3\nd: off")] == [1, 2, 3, 4, 5]


def test_lines_are_those_of_keys() -> None:
    root = parse("a: 1\n\n# why\nb:\n  c: |\n    x\n    y\n").root

    assert root is not None
    entries = root.value
    assert isinstance(entries, dict)
    assert (entries["a"].line, entries["b"].line, entries["b"].value["c"].line) == (1, 4, 5)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("0.950", "0.950", id="number-as-written"),
        pytest.param("'8000'", '"8000"', id="text-in-quotes"),
        pytest.param("[1, 'a', {b: secret}]", '[1, "a", {…}]', id="no-mapping-is-laid-open"),
        pytest.param("x" * 100, f'"{"x" * 59}…', id="shortened"),
    ],
)
def test_how_a_value_is_shown(text: str, shown: str) -> None:
    root = parse(text).root

    assert root is not None
    assert root.shown() == shown


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:- \n\t{}[],&*!|>'\"#?%@`~=.01yesno\x00\x85\ufeff", max_size=60))
def test_no_text_makes_it_raise(text: str) -> None:
    document = parse(text)

    assert all(isinstance(flaw, Flaw) for flaw in document.flaws)


@settings(max_examples=200, deadline=None)
@given(st.from_regex(r"[-+]?[0-9.eE+-]{1,30}", fullmatch=True))
def test_a_number_is_finite_and_keeps_its_text(written: str) -> None:
    root = parse(f"[{written}]").root
    assert root is not None
    (item,) = root.plain()  # type: ignore[misc]

    assert str(item) == written.strip()
    assert isinstance(item, str) or math.isfinite(item)
