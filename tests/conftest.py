"""Fixtures and rules for the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest

LIVE = Path(__file__).with_name("live")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in tests/live, so that `-m "not live"` leaves out all that needs root."""
    for item in items:
        if item.path.is_relative_to(LIVE):
            item.add_marker("live")
