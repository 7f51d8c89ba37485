"""What a process of a sandbox uses, read from outside, at no cost to it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox import Sandbox

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """One process at one moment.

    Attributes:
        cpu_s: processor seconds of its own and of the children it has waited for.
        private_kib: memory that would be free if it ended (USS).
        own_kib: the memory that no file is behind, which leaves out programs and the journal it has mapped.
        shared_kib: private, and its share of what it shares (PSS).
        descriptors: open files, without those of the journal: of them a reader has one for each that journald keeps.
    """

    cpu_s: float
    private_kib: int
    own_kib: int
    shared_kib: int
    descriptors: int
    threads: int


def usage(box: Sandbox, pid: int) -> Usage:
    """What this process uses now."""
    process = Path(f"/proc/{box.pid}/root/proc/{pid}")
    stat = process.joinpath("stat").read_text().rpartition(")")[2].split()
    memory = {
        line.split(":")[0]: line.split()[1] for line in process.joinpath("smaps_rollup").read_text().splitlines()[1:]
    }
    private = sum(int(memory[key]) for key in ("Private_Clean", "Private_Dirty", "Private_Hugetlb"))
    own_ns = sum(int(thread.read_text().split()[0]) for thread in process.glob("task/*/schedstat"))
    cpu_s = own_ns / 1e9 + sum(map(int, stat[13:15])) * _TICK_S  # cutime, cstime
    own = int(memory["Anonymous"])
    return Usage(cpu_s, private, own, int(memory["Pss"]), _descriptors(process), int(stat[17]))


def _descriptors(process: Path) -> int:
    open_files = []
    for link in process.joinpath("fd").iterdir():
        with suppress(FileNotFoundError):  # closed between the listing and the look
            open_files.append(link.readlink())
    return sum(file.suffix != ".journal" for file in open_files)


def main_pid(box: Sandbox, unit: str) -> int:
    """The main process of a unit."""
    return int(box.run(["systemctl", "show", unit, "--value", "-p", "MainPID"], check=True).stdout)
