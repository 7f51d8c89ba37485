"""What the README shows of the demo is what the demo shows."""

from __future__ import annotations

import re

from tests.sandbox import CLONE, demo

TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def test_the_readme_shows_what_the_demo_shows(capfd):
    """Line by line, in this order, but for times; a line that ends in … goes on."""
    block = (CLONE / "README.md").read_text().partition("```text\n")[2].partition("```")[0]
    shown = [TIME.sub("TIME", line).rstrip() for line in block.splitlines() if line]

    assert demo.main(start_s=0.5) == 0

    printed = iter([TIME.sub("TIME", line).rstrip() for line in capfd.readouterr().out.splitlines()])
    missing = [
        line
        for line in shown
        if not any(each == line or (line.endswith("…") and each.startswith(line[:-1].rstrip())) for each in printed)
    ]
    assert len(shown) > 8
    assert missing == []
