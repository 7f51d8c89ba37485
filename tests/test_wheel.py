"""What is installed from the wheel, away from the clone."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import vllm_supervisor

CLONE = Path(__file__).resolve().parents[1]
TEMPLATES = sorted(path.name for path in (CLONE / "templates").iterdir())


def build(source: Path, target: str, out: Path) -> Path:
    """Build one distribution with the build backend itself, which needs no network."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.iterdir())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CLONE, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and nothing of the clone; what it depends on is borrowed from ours."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place, symlinks=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", f"--python={place / 'bin' / 'python'}", "install", "--no-index", "--no-deps"]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # As a plain directory on sys.path, so that the .pth file with which the clone is installed there is not read.
    site_packages = next(place.glob("lib/python*/site-packages"))
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("platlib") + "\n")
    return place


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def templates_in(wheel: Path) -> list[str]:
    prefix = "vllm_supervisor/templates/"
    return sorted(name.removeprefix(prefix) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(prefix))


def test_the_templates_are_in_the_wheel(wheel: Path) -> None:
    assert templates_in(wheel) == TEMPLATES


def test_a_wheel_built_from_the_sdist_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """Distributions build from the sdist, where a link in the clone could have been lost."""
    run(["tar", "--extract", f"--file={build(CLONE, 'sdist', tmp_path / 'sdist')}"], tmp_path)
    unpacked = tmp_path / f"vllm_supervisor-{vllm_supervisor.__version__}"
    rebuilt = build(unpacked, "wheel", tmp_path / "wheel")

    assert zipfile.ZipFile(rebuilt).namelist() == zipfile.ZipFile(wheel).namelist()
    assert sorted(path.name for path in (unpacked / "templates").iterdir()) == TEMPLATES


def test_the_package_comes_from_the_wheel_and_loads_its_templates(installed: Path, tmp_path: Path) -> None:
    program = """if True:
        from importlib.resources import files
        import vllm_supervisor
        print(vllm_supervisor.__file__)
        print(*sorted(path.name for path in files("vllm_supervisor").joinpath("templates").iterdir()))
    """
    where, templates = run([str(installed / "bin" / "python"), "-c", program], tmp_path).splitlines()

    assert Path(where).is_relative_to(installed)
    assert templates.split() == TEMPLATES


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_what_is_copied_or_read_is_installed(installed: Path) -> None:
    """Units, the schema of the YAML and its examples, as they are in the clone."""
    share = installed / "share" / "vllm-supervisor"

    assert {path.name for path in share.iterdir()} == {"units", "config.schema.json", "examples"}
    assert contents(share / "units") == contents(CLONE / "units")
    assert contents(share / "examples") == contents(CLONE / "packaging" / "examples")
    assert (share / "config.schema.json").read_bytes() == (CLONE / "packaging" / "config.schema.json").read_bytes()


def test_the_command_works_from_anywhere(installed: Path, tmp_path: Path) -> None:
    program = str(installed / "bin" / "vllm-supervisor")

    assert vllm_supervisor.__version__ in run([program, "--version"], tmp_path)
    assert "apply" in run([program, "--help"], tmp_path)
