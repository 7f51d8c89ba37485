"""What confines the services and ourselves: each relaxation is explained, each setting can be loosened."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_supervisor.config.hardening import SETTINGS

CLONE = Path(__file__).parents[2]
TEMPLATE = (CLONE / "templates/service.j2").read_text()
RENDERED = CLONE / "tests/golden/01-minimax-m25/expected/vllm-minimax-m25.service"
OURS = CLONE / "units/vllm-supervisor.service"
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")


def relaxations(unit: Path) -> Iterator[str]:
    """What systemd counts against a unit, by the word that an explanation of it has to hold."""
    argv = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--json=short", str(unit)]
    for row in json.loads(subprocess.run(argv, capture_output=True, text=True, check=False).stdout):
        if float(row.get("exposure") or 0) > 0:
            setting, _, group = row["name"].partition("=~")
            yield re.sub(r"\W*\(?([A-Z_@a-z]+).*", r"\1", group) if group else setting.partition("=")[0]


@needs_systemd
def test_each_relaxation_of_a_service_is_explained() -> None:
    """In the comment that heads the template."""
    explained = TEMPLATE.partition("#}")[0]

    found = list(relaxations(RENDERED))

    assert len(found) > 10
    assert [word for word in found if word not in explained] == []


@needs_systemd
def test_each_relaxation_of_our_own_unit_is_explained() -> None:
    """On the page, with a test for each."""
    explained = (CLONE / "docs/threat-model.md").read_text().partition("## Our own unit")[2]

    found = list(relaxations(OURS))

    assert len(found) > 5
    assert [word for word in found if word not in explained] == []


def test_every_setting_that_confines_can_be_loosened() -> None:
    """Those of the template are those of `hardening:`, each in one line."""
    block = TEMPLATE.partition("TasksMax=infinity\n")[2].partition("[Install]")[0]
    confining = re.findall(r"(?m)^(\w+)=", block)

    assert sorted([*confining, "UMask"]) == sorted(SETTINGS)


def test_path_of_the_daemon_is_systemds() -> None:
    """Who may write to a directory on it is root's equal; systemd's own holds directories of root's alone."""
    settings = re.findall(r"(?m)^(\w+)=(.*)$", OURS.read_text())

    assert [value for key, value in settings if key in ("Environment", "EnvironmentFile", "ExecSearchPath")] == []
    assert all(value.startswith(("/", "kill ")) for key, value in settings if key.startswith("Exec"))
