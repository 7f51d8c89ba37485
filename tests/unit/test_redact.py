"""What is masked of a text that is kept or shown, and what is left for people to read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vllm_supervisor.redact import _SHAPES, is_secret, printable, redact

HF = "hf_" + "Ab1" * 12  # of the shape that the hub gives, and nobody's


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"401 for token {HF}, sorry", "401 for token (not shown), sorry"),
        (
            "non-default args: {'api_key': ['a', 'b'], 'port': 1}",
            "non-default args: {'api_key': (not shown), 'port': 1}",
        ),
        ("vllm serve m --api-key s3cret --port 1", "vllm serve m --api-key (not shown) --port 1"),
        ("cannot use services.a.arguments.--api-key s3cret", "cannot use services.a.arguments.--api-key (not shown)"),
        ("HF_TOKEN=abc PORT=1", "HF_TOKEN=(not shown) PORT=1"),
        ('{"db_password": "a b", "n": 1}', '{"db_password": (not shown), "n": 1}'),
        ("Authorization: Bearer a.b-c", "Authorization: (not shown)"),
        ("curl -H Bearer abcdefgh", "curl -H Bearer (not shown)"),
        ("http://me:pw@proxy:3128/", "http://(not shown)@proxy:3128/"),
        ("key sk-0123456789abcdef0", "key (not shown)"),
        ("--api-key=x --api-key=y", "--api-key=(not shown) --api-key=(not shown)"),
    ],
)
def test_a_secret_is_masked(text: str, shown: str) -> None:
    """By its name or by its shape; a second pass changes nothing."""
    assert redact(text) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
        "max_num_batched_tokens=8192, tokenizer='x', eos_token_id: 2, pad_token: '<pad>', skip_tokenizer_init=False",
        "http://127.0.0.1:8000/v1/completions and me@example.org",
        "the token is too long; see --max-tokens 4",
        "hf_overrides={} sk-learn",
    ],
)
def test_what_is_none_is_left(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "piece", ["token", "token=", "--token ", "token='", "[token:", "://a:", "eyJ", "sk-", "a.", "=", " "]
)
def test_a_hostile_text_takes_no_time(piece: str) -> None:
    """A line of a million characters, however it is made, is done at once."""
    began_s = time.process_time()

    redact(piece * (1_000_000 // len(piece)))

    assert time.process_time() - began_s < 5


def test_nothing_that_a_terminal_acts_on_is_left() -> None:
    assert printable("a\x1b[31mb\x9bc\nd\u2028e\u202ef") == "a [31mb c d e f"


@pytest.mark.parametrize(
    ("name", "secret"),
    [("HF_TOKEN", True), ("--api-key", True), ("a.b.password", True), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", False),
     ("eos_token", False), ("tokenizer", False), ("max-tokens", False)],
)  # fmt: skip
def test_names(name: str, *, secret: bool) -> None:
    assert is_secret(name) == secret


def test_no_page_and_no_example_holds_a_token() -> None:
    """Of the shapes that issuers give them; what stands there is made up on the spot, in words."""
    clone = Path(__file__).parents[2]
    files = [clone / "README.md", *clone.glob("docs/*.md"), *clone.glob("packaging/**/*.yaml"), *clone.glob("units/*")]

    assert len(files) > 10
    assert [str(file) for file in files if _SHAPES.search(file.read_text())] == []
