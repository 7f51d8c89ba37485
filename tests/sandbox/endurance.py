"""Some thousand recoveries in one run of the daemon: what it holds must not grow.

Sixteen services fail at whatever they are given, down to one sequence, which takes 29 steps from the number they are
declared with; then their settings change, so that nothing learned holds any more, and they begin anew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.live.fleet import DAEMON, Fleet
from tests.sandbox import PYTHON, Sandbox, standin
from tests.sandbox.usage import Usage, main_pid, usage

RECOVERIES = 2000
"""A day of a bad week: one each 43 s."""

SERVICES = 16
STEPS = 29
"""The stamp on a line holds at most nine digits, and 2 to the power of 29 has nine."""

GROWTH_KIB = 1.0
"""For each recovery, the most that the daemon's own memory may grow by: what is not freed is kept in tens of KiB.

sqlite keeps the pages it has read, up to 2 MB, which is most of what there is while the store grows."""

STATE = "var/lib/vllm-supervisor"


@dataclass(frozen=True)
class Row:
    """The daemon and its store after so many recoveries."""

    recoveries: int
    took_s: float
    daemon: Usage
    store_bytes: int
    log_bytes: int
    caps: int
    history: int

    def __str__(self) -> str:
        own = f"{self.daemon.own_kib:>10,} {self.daemon.descriptors:>6} {self.daemon.threads:>8}"
        return (
            f"{self.recoveries:>10,} {self.took_s:>7.0f} {own} {self.store_bytes / 1024:>10,.0f}"
            f" {self.log_bytes / 1024:>8,.0f} {self.history:>8,} {self.caps:>6,}"
        )


HEAD = (
    f"{'recoveries':>10} {'s':>7} {'  own KiB':>10} {'files':>6} {'threads':>8} {'store KiB':>10} {'WAL KiB':>8}"
    f" {'history':>8} {'caps':>6}"
)


def one_round(fleet: Fleet, number: int, services: int, steps: int) -> None:
    """Each service fails so often and is then ready with one sequence."""
    names = [f"s{service:02}" for service in range(services)]
    keys = {"max_num_seqs": 2**steps, "remediation": {"floor": 1, "max_attempts": 64}}
    entries = {name: standin.service(place, fits=1, **keys) for place, name in enumerate(names)}
    for entry in entries.values():
        entry["environment"]["ROUND"] = number
    fleet.configure(entries)
    fleet.supervisor("apply", "--no-wait", timeout=300)
    fleet.box.wait_until(
        lambda: standin.all_ready(fleet.box, names), "all ready at the end of their steps", timeout=900
    )


def look(fleet: Fleet, recoveries: int, began_s: float) -> Row:
    """How things are now."""
    root = Path(f"/proc/{fleet.box.pid}/root")
    store, log = root / STATE / "store.sqlite", root / STATE / "store.sqlite-wal"
    counts = "(SELECT COUNT(*) FROM caps), COUNT(*), COUNT(*) FILTER (WHERE kind = 'lowered')"
    script = f'import sqlite3; db = sqlite3.connect("file:/{STATE}/store.sqlite?mode=ro", uri=True)\n'
    script += f'print(*db.execute("SELECT {counts} FROM history").fetchone())'
    caps, history, lowered = map(int, fleet.box.run([PYTHON, "-c", script], check=True).stdout.split())
    assert lowered == recoveries, f"{lowered} steps were taken, and not {recoveries}"
    pid = main_pid(fleet.box, DAEMON)
    # It may be running a program just now, with pipes to it.
    daemon = min((usage(fleet.box, pid) for _ in range(200)), key=lambda found: found.descriptors)
    return Row(recoveries, time.monotonic() - began_s, daemon, store.stat().st_size, log.stat().st_size, caps, history)


def rounds(fleet: Fleet, recoveries: int, *, services: int = SERVICES, steps: int = STEPS) -> list[Row]:
    """As many rounds as so many recoveries take, and how things were after each."""
    standin.install(fleet.box)
    fleet.start_daemon()
    began_s, found = time.monotonic(), list[Row]()
    while not found or found[-1].recoveries < recoveries:
        one_round(fleet, len(found), services, steps)
        found.append(look(fleet, (len(found) + 1) * services * steps, began_s))
        print(found[-1], flush=True)
    return found


def growth(rows: Sequence[Row]) -> float:
    """KiB of own memory for each recovery after the first of these rounds."""
    return (rows[-1].daemon.own_kib - rows[0].daemon.own_kib) / (rows[-1].recoveries - rows[0].recoveries)


def main(recoveries: int) -> int:
    """Measure and print; 1 when something grew."""
    with Sandbox() as box:
        print(HEAD, flush=True)
        found = rounds(Fleet(box), recoveries)
    warm = found[1:] if len(found) > 2 else found  # the allocator takes what it goes on using in the first thousand
    first, last = warm[0].daemon, warm[-1].daemon
    print(f"{growth(warm):.2f} KiB of own memory for each recovery once it is warm; at most {GROWTH_KIB:g}")
    same = (first.descriptors, first.threads) == (last.descriptors, last.threads)
    return 0 if same and growth(warm) <= GROWTH_KIB else 1
