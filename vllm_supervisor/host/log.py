"""What the daemon says: into the journal with fields that can be searched, or to standard error when run by hand."""

from __future__ import annotations

import os
import sys

from systemd import journal

CRITICAL, ERROR, WARNING, NOTICE, INFO = 2, 3, 4, 5, 6
"""Priorities of syslog(3)."""


def say(priority: int, text: str, *, message_id: str = "", unit: str = "", **fields: str) -> None:
    """Say one sentence.

    Args:
        priority: of syslog, 0 to 7.
        text: the sentence.
        message_id: 128-bit ID in hex, for the journal's catalog.
        unit: unit that it is about. `journalctl -u UNIT` and `systemctl status UNIT` then show the sentence among that
            unit's own lines, since OBJECT_SYSTEMD_UNIT= of a root process is what they look for.
        fields: more journal fields, by name in capitals; empty ones are left out.
    """
    if not os.environ.get("JOURNAL_STREAM"):
        print(f"{unit}: {text}" if unit else text, file=sys.stderr, flush=True)  # noqa: T201 - run by hand
        return
    more = {key: value for key, value in fields.items() if value}
    if message_id:
        more["MESSAGE_ID"] = message_id
    if unit:
        more["OBJECT_SYSTEMD_UNIT"] = unit
    journal.send(text, PRIORITY=priority, SYSLOG_IDENTIFIER="vllm-supervisor", **more)
