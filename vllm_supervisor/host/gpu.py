"""GPU memory, as nvidia-smi tells it; on a host without nvidia-smi nothing is known, and nothing is assumed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from vllm_supervisor import programs
from vllm_supervisor.errors import HostError, PermissionDeniedError

NVIDIA_SMI_TIMEOUT_S = 10.0
"""It answers in well under a second with persistence mode on, and in a few seconds when it has to load the driver."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment; memory in MiB, as nvidia-smi counts it."""

    index: int
    name: str
    total_mib: int
    used_mib: int


def read() -> dict[int, Gpu]:
    """Every GPU by index; {} where nvidia-smi is missing, fails or is too slow."""
    if shutil.which("nvidia-smi") is None:
        return {}
    query = ["nvidia-smi", "--query-gpu=index,name,memory.total,memory.used", "--format=csv,noheader,nounits"]
    try:
        text = programs.run(query, timeout_s=NVIDIA_SMI_TIMEOUT_S)
    except (HostError, PermissionDeniedError):
        return {}
    gpus = [_gpu(line) for line in text.splitlines()]
    return {gpu.index: gpu for gpu in gpus if gpu is not None}


def _gpu(line: str) -> Gpu | None:
    try:
        index, name, total, used = (part.strip() for part in line.split(","))
        return Gpu(int(index), name, int(total), int(used))
    except ValueError:  # "[N/A]" for a card in MIG mode, or a line of complaint
        return None
