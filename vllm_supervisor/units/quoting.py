"""The one place that turns a text into what systemd reads back as that text.

A line is split into words, with C-style escapes in either kind of quotes; then `%` starts a specifier, everywhere,
and `$` a variable, in command lines only: systemd.service(5) on command lines, systemd.exec(5) on `Environment=`.
"""

from __future__ import annotations

import re

from vllm_supervisor.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z0-9_@:,./=+-]+")


def exec_word(arg: str) -> str:
    """Quote one argument (not the program's path) for `ExecStart=`, so that the process receives exactly `arg`.

    Raises:
        ConfigError: it holds a newline or NUL, or is not valid Unicode.
    """
    if _PLAIN.fullmatch(arg):
        return arg
    return _quoted(arg).replace("$", "$$")


def environment_assignment(name: str, value: str) -> str:
    """The right-hand side of `Environment=` that sets `name` to exactly `value`.

    Raises:
        ConfigError: as `exec_word`.
    """
    assignment = f"{name}={value}"
    return assignment if _PLAIN.fullmatch(assignment) else _quoted(assignment)


def literal(text: str) -> str:
    """Text for a setting that is taken as it stands but for specifiers, such as a description or a path."""
    return text.replace("%", "%%")


def comment(text: str) -> str:
    """Text for a comment: one line, nothing in it that a terminal would act on."""
    return "".join(char if char.isprintable() else " " for char in " ".join(text.split()))


def _quoted(text: str) -> str:
    if "\n" in text or "\0" in text:
        raise ConfigError(f"cannot put {text!r} into a unit: it holds a newline or NUL")
    # JSON is easier to read in single quotes; systemd treats both kinds alike.
    quote = "'" if '"' in text and "'" not in text else '"'
    return quote + "".join(_escaped(char, quote) for char in text).replace("%", "%%") + quote


def _escaped(char: str, quote: str) -> str:
    if char in ("\\", quote):
        return f"\\{char}"
    if char.isprintable():
        return char
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:
        raise ConfigError(f"cannot put {char!r} into a unit: it is half of a surrogate pair, not a character")
    # Line separators, direction marks and control characters: a reviewer must see them, and `\r` would end the line.
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
