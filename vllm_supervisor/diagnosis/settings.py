"""Which `max_num_seqs` a run had: told by the unit, by vLLM's arguments, or by vLLM's rule for its default."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A key of the dictionary that vLLM prints as "non-default args".
_SEQS = re.compile(r"[{,] ?'max_num_seqs': (\d{1,9})")
_TOKENS = re.compile(r"[{,] ?'max_num_batched_tokens': (\d{1,9})")
_THROUGHPUT = re.compile(r"[{,] ?'performance_mode': 'throughput'")
_CHUNKED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,9})")
_ARGUMENTS = "non-default args: "

# vLLM's table of defaults for `vllm serve` (`EngineArgs.get_batch_defaults`): one row of it sets both values, so the
# batched tokens it prints tell which row it took.
_SEQS_BY_TOKENS = {2048: 256, 8192: 1024, 16384: 1024}
_SMALL, _LARGE = 256, 1024
_LARGE_EVERYWHERE = re.compile(r"0\.8\.[0-3](?!\d)")  # these took the large row on every card

# GiB of a card as torch prints them. From 70 the large row applies, but not to an A100 and, from 0.33, not to a GB10,
# which their capacity does not tell from an H100 or others.
_LARGE_FROM_GIB = 70.0


class Settings:
    """Reads the lines that tell, and answers with what was in effect.

    Args:
        stamped: the value the unit was rendered with, if any.
        small_default: the cards are known to be of a kind that vLLM takes the small default for, however large.
    """

    def __init__(self, stamped: int | None, *, small_default: bool = False) -> None:
        self.stamped = stamped
        self._small_default = small_default
        self._seqs: int | None = None
        self._tokens: int | None = None
        self._tokens_given = False
        self._doubled = False

    def read(self, text: str) -> None:
        """Take a line that may tell."""
        if text.startswith(_ARGUMENTS):
            self._seqs = _first(_SEQS, text)
            self._tokens = _first(_TOKENS, text)
            self._tokens_given = self._tokens is not None
            self._doubled = _THROUGHPUT.search(text) is not None
        elif (tokens := _first(_CHUNKED, text)) is not None:
            self._tokens = tokens

    def tried(self, numbers: Mapping[str, float], version: str) -> int | None:
        """The value that did not fit, given what the failing line itself tells."""
        for name in ("dummy_requests_seqs", "tried_seqs"):
            if numbers.get(name):
                return int(numbers[name])
        return self.effective(version, numbers.get("total_gib"))

    def effective(self, version: str, capacity_gib: float | None) -> int | None:
        """The value in effect; None when nothing tells. Never above the batched tokens, which vLLM caps it by.

        Args:
            version: vLLM's, "" when not known.
            capacity_gib: the card's, as torch prints it.
        """
        seqs = self.stamped or self._seqs or self._default(version, capacity_gib)
        return seqs if seqs is None or self._tokens is None else min(seqs, self._tokens)

    def _default(self, version: str, capacity_gib: float | None) -> int | None:
        if _LARGE_EVERYWHERE.match(version):
            return _LARGE
        factor = 2 if self._doubled else 1
        if self._tokens is not None and not self._tokens_given:
            by_tokens = _SEQS_BY_TOKENS.get(self._tokens // factor)
            if by_tokens is not None:
                return by_tokens * factor
        if capacity_gib is None:
            return None
        small = self._small_default or capacity_gib < _LARGE_FROM_GIB
        return (_SMALL if small else _LARGE) * factor


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None
