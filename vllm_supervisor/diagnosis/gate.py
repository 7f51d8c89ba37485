"""The first look at a line: is it worth more than this? More than 99 of 100 lines of a serving vLLM are not.

One look costs well under a microsecond, depends on the line's beginning only where the line has a level, and knows
nothing of the rules: their number does not matter.
"""

from __future__ import annotations

import re

from vllm_supervisor.diagnosis.markers import KEY_LENGTH, KEYS_BYTES, KEYS_TEXT
from vllm_supervisor.diagnosis.normalise import LINE_LIMIT

_COLOUR = r"(?:\x1b\[[\d;]{0,12}m)?"
_HEAD = (
    rf"{_COLOUR}(?:\(\w{{1,64}}[^()\n]{{0,90}}\){_COLOUR} ){{0,2}}{_COLOUR}"
    rf"(?:(INFO)|(DEBUG|WARNING)|ERROR|CRITICAL|FATAL)"
    rf"(?:{_COLOUR} *{_COLOUR} *\d\d-\d\d \d\d:\d\d:\d\d[.,\d]{{0,10}}"
    rf"{_COLOUR} {_COLOUR}\[?[^\]\s]{{1,200}}\]{_COLOUR} ?|:[ \t]+)"
)
# What an unlevelled line must hold to matter: an error, a traceback, a progress bar, or a level behind a collector's
# prefix.
_LOOSE = (
    r"rror|RROR|INFO|xception|nterrupt|CRITICAL|FATAL|\", line |raceback|OutOfResources|\[type=|Completed \||"
    r"Capturing|warmup|fault|dumped|Killed|ailure|tartup complete"
)
_HEAD_TEXT, _HEAD_BYTES = re.compile(_HEAD), re.compile(_HEAD.encode())
_LOOSE_TEXT, _LOOSE_BYTES = re.compile(_LOOSE), re.compile(_LOOSE.encode())


def worth_reading(message: bytes | str) -> bool:
    """True when a line may say something about a start; False for all others, whatever run they belong to.

    Args:
        message: a MESSAGE field, or a line of a log, as it was written.
    """
    if isinstance(message, bytes):
        if head := _HEAD_BYTES.match(message):
            if head[1]:
                end = head.end()
                return message[end : end + KEY_LENGTH] in KEYS_BYTES
            return not head[2]
        return _LOOSE_BYTES.search(message, 0, LINE_LIMIT) is not None
    if head_text := _HEAD_TEXT.match(message):
        if head_text[1]:
            end = head_text.end()
            return message[end : end + KEY_LENGTH] in KEYS_TEXT
        return not head_text[2]
    return _LOOSE_TEXT.search(message, 0, LINE_LIMIT) is not None
