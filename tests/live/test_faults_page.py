"""The page of faults has a row for each test that makes one, and no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import faults


def test_the_page_has_a_row_for_each_fault_and_no_other(request):
    marked = [item for item in request.session.items if item.get_closest_marker("fault")]
    modules = {path.stem for path in Path(__file__).parent.glob("test_*.py") if "\n@fault(" in path.read_text()}
    if missing := modules - {item.path.stem for item in marked}:
        pytest.skip(f"only a part of the suite was chosen, without {', '.join(sorted(missing))}")
    wanted = {faults.row_of(item) for item in marked}  # several runs of one test may make one row
    tests = {(faults.row_of(item)[:2], item.originalname) for item in marked}
    assert len({row for row, _ in tests}) == len(tests), "two faults of one name"
    if os.environ.get("UPDATE_EXPECTED"):
        faults.keep_only(wanted)

    on_the_page = faults.rows()

    assert {row[:4] for row in on_the_page} == {row[:4] for row in wanted}
    assert faults.PAGE.read_text(encoding="utf-8") == faults.page(on_the_page)
