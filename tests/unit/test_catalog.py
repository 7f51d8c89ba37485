"""What we say in the journal has an explanation in the catalog, and every explanation is of something we say."""

from __future__ import annotations

import re
from pathlib import Path

from vllm_supervisor.judgement import VOICE

CATALOG = Path(__file__).parents[2] / "units/vllm-supervisor.catalog"


def test_catalog_and_messages_agree():
    """`journalctl -x` finds each ID, once."""
    explained = re.findall(r"^-- ([0-9a-f]{32})$", CATALOG.read_text(), re.MULTILINE)

    assert sorted(explained) == sorted(message_id for _, message_id in VOICE.values())
