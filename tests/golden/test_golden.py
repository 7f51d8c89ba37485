"""Each directory beside this file: YAML in, units out, compared to the byte. UPDATE_EXPECTED=1 writes them anew.

A case is `config.yaml` (with `conf.d/` if it likes), `caps.yaml` for what was learned, `host.yaml` for a systemd other
than the usual one, and the units it gives under `expected/`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_supervisor.config import load
from vllm_supervisor.units import Cap, Host, render_all

CASES = sorted(path.parent for path in Path(__file__).parent.glob("*/config.yaml"))
UNITS = sorted(Path(__file__).parent.glob("*/expected/*.service"))
PROGRAM = ("/opt/vllm-supervisor/bin/vllm-supervisor",)
WORST_SCORE = 2.5
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")


def beside(name: str) -> dict[str, Any]:
    """A YAML file of the case in the current directory; empty if there is none."""
    path = Path(name)
    return yaml.safe_load(path.read_text()) if path.exists() else {}


def host_of(case: Path) -> Host:
    path = case / "host.yaml"
    return Host(
        **{"systemd_version": 252, "program": PROGRAM, **(yaml.safe_load(path.read_text()) if path.exists() else {})}
    )


def tree(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(directory.glob("*"))}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_yaml_gives_these_units(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case)  # so that the source in the header is the same in every clone
    configuration = load(Path("config.yaml"))
    assert configuration.problems == ()

    caps = {name: Cap(**cap) for name, cap in beside("caps.yaml").items()}
    texts = render_all(configuration.services, caps, host_of(case), dict.fromkeys(configuration.services, "0.32.0"))

    expected = case / "expected"
    if os.environ.get("UPDATE_EXPECTED"):
        shutil.rmtree(expected, ignore_errors=True)
        expected.mkdir()
        for name, text in texts.items():
            (expected / name).write_text(text)
    assert texts == tree(expected)


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: f"{unit.parents[1].name}/{unit.stem}")
def test_systemd_finds_nothing_to_complain_of(unit: Path, tmp_path: Path) -> None:
    """Its own parser, with a program in place of those that are not installed here."""
    version = int(subprocess.check_output(["systemd-analyze", "--version"], text=True).split()[1])
    if host_of(unit.parents[1]).systemd_version > version:
        pytest.skip(f"the systemd here is {version}")
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"^(ExecStart(?:Post)?=)\S+", r"\1/bin/true", unit.read_text(), flags=re.MULTILINE))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(copy)], capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: f"{unit.parents[1].name}/{unit.stem}")
def test_the_sandbox_is_tight_enough(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)], capture_output=True, text=True
    )
    verdict = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)

    assert verdict, done.stderr
    with capsys.disabled():
        print(f"  {unit.name}: exposure {verdict[1]}", end="")
    assert float(verdict[1]) <= WORST_SCORE or unit.stem == "vllm-loosened"


def test_our_own_unit_is_tighter_still() -> None:
    """It runs as root: what is kept of that is explained in the unit, and its exposure stays at 2.0 or below."""
    unit = Path(__file__).parents[2] / "units/vllm-supervisor.service"
    argv = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout

    assert float(re.search(r"exposure level for \S+: ([\d.]+)", said)[1]) <= 2.0  # type: ignore[index]
