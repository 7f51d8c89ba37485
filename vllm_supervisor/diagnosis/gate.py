"""The first look at a line: is it worth more than this? More than 99 of 100 lines of a serving vLLM are not.

One look costs a fraction of a microsecond, depends on the line's beginning only where the line has a level, and knows
nothing of the rules: their number does not matter.
"""

from __future__ import annotations

import re

from vllm_supervisor.diagnosis.markers import KEY_LENGTH, KEYS_BYTES, KEYS_TEXT
from vllm_supervisor.diagnosis.normalise import ANSI, LINE_LIMIT

# A record with a level that is no error: its text begins where the match ends. Uvicorn's has a colon, vLLM's a date and
# a place in brackets.
_QUIET = r"(?:\([^)\n]{1,100}\) )?(?:INFO|DEBUG|WARNING)(?: \d\d-[^\]\n]{1,250}\] ?|: +)"
# The same in colours, or behind two names of processes.
_COLOUR = r"(?:\x1b\[[\d;]{0,12}m)?"
_DRESSED = (
    rf"{_COLOUR}(?:\([^)\n]{{1,100}}\){_COLOUR} ){{0,2}}{_COLOUR}(?:INFO|DEBUG|WARNING)"
    rf"(?:{_COLOUR} {_COLOUR}\d\d-[^\]\n]{{1,250}}\]{_COLOUR} ?{_COLOUR}|: +)"
)
# What any other line must hold to matter: an error, a traceback, a progress bar, or a level behind a collector's
# prefix. Each begins with a character that prose has few of, which makes the search fast.
_LOOSE = (
    r"Error|ERROR|: error|Exception|INFO|Interrupt|CRITICAL|FATAL|\", line |Traceback|Timeout|OutOfResources|"
    r"OfflineMode|\[type=|Value error|Completed \||Capturing|DeepGEMM warmup|JIT kernel|Application startup|"
    r"Fatal Python|Memory access fault|Segmentation fault|Bus error|Aborted|\[shutdown\]|"
    # What systemd and journald say about a unit.
    r"Starting |Started |Stopping |Start request|Main process|Control process|Failed (?:with|to start)|"
    r"Scheduled restart|Deactivated|Succeeded\.|OOM killer|Killed process|Suppressed "
)
LONG_LINE = 8192
"""Bytes. A line this long may be one that journald breaks (LineMax=, 48 KiB unless somebody set it lower), and then
what follows it must be known for its rest."""

_QUIET_TEXT, _DRESSED_TEXT, _LOOSE_TEXT = (re.compile(pattern) for pattern in (_QUIET, _DRESSED, _LOOSE))
_QUIET_BYTES, _DRESSED_BYTES, _LOOSE_BYTES = (re.compile(pattern.encode()) for pattern in (_QUIET, _DRESSED, _LOOSE))


def worth_reading(message: bytes | str) -> bool:
    """True when a line may say something about a start, or systemd something about a unit; False for all others.

    Args:
        message: a MESSAGE field, or a line of a log, as it was written.
    """
    if len(message) >= LONG_LINE:
        return True
    if isinstance(message, bytes):
        if quiet := _QUIET_BYTES.match(message) or _DRESSED_BYTES.match(message):
            end = quiet.end()
            return message[end : end + KEY_LENGTH] in KEYS_BYTES
        if b"\x1b" in message:
            return _is_plain_worth_reading(ANSI.sub("", message.decode("utf-8", "replace")))
        return _LOOSE_BYTES.search(message, 0, LINE_LIMIT) is not None
    return _is_plain_worth_reading(ANSI.sub("", message) if "\x1b" in message else message)


def _is_plain_worth_reading(message: str) -> bool:
    """A line with colours, which may stand anywhere in it, is worth what it would be without."""
    if quiet := _QUIET_TEXT.match(message) or _DRESSED_TEXT.match(message):
        end = quiet.end()
        return message[end : end + KEY_LENGTH] in KEYS_TEXT
    return _LOOSE_TEXT.search(message, 0, LINE_LIMIT) is not None
