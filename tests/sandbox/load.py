"""Many services that fail their warm-up at the same moment, beside a journal full of other things.

Every one must end ready at its value. From the error line to systemd's "Starting" of the next run, in journald's own
times; and what the daemon, and what PID 1, used for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.live.fleet import DAEMON, Fleet
from tests.sandbox import Sandbox, standin, throughput
from tests.sandbox.usage import Usage, main_pid, usage

ENTRIES = 5_000_000
SERVICES = (1, 8, 64)
STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"
OTHERS = "unrelated.service"
GROWTH = 1.5
"""The most processor time that each of the most services may cost the daemon, as a multiple of the least that one cost
among fewer."""


@dataclass(frozen=True)
class Row:
    """One round: so many services that failed at once. CPU and memory are the daemon's, unless it says PID 1."""

    services: int
    p50_s: float
    p99_s: float
    longest_s: float
    cpu_s: float
    pid_1_s: float
    memory: Usage

    @property
    def each_s(self) -> float:
        """The daemon's CPU time for each service."""
        return self.cpu_s / self.services

    def __str__(self) -> str:
        each = f"{self.each_s * 1e3:>7.0f} {self.pid_1_s / self.services * 1e3:>7.0f}"
        times = f"{self.p50_s:>8.3f} {self.p99_s:>8.3f} {self.longest_s:>8.3f}"
        memory = " ".join(f"{kib / 1024:>7.1f}" for kib in (self.memory.private_kib, self.memory.own_kib))
        return f"{self.services:>8} {times} {self.cpu_s:>8.2f} {each} {memory}"


HEAD = (
    f"{'':>8} {'error line to new start, s':^26} {'daemon':>8} {'for each, ms':^15} {'memory, MiB':^15}\n"
    f"{'services':>8} {'p50':>8} {'p99':>8} {'longest':>8} {'CPU s':>8} {'daemon':>7} {'PID 1':>7}"
    f" {'private':>7} {'own':>7}"
)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(share * 100) // 100) - 1)]


def gaps_s(box: Sandbox, names: Sequence[str], since_s: float) -> list[float]:
    """For each service, the seconds from the first error line since then to the start that followed."""
    found = []
    entries = box.journal(f"--since=@{since_s:.6f}", *(f"--unit=vllm-{name}.service" for name in names))
    for name in names:
        mine = [e for e in entries if f"vllm-{name}.service" in (e.get("_SYSTEMD_UNIT"), e.get("UNIT"))]
        error_us = min(int(e["__REALTIME_TIMESTAMP"]) for e in mine if standin.SENTENCE in str(e.get("MESSAGE")))
        starts = (int(e["__REALTIME_TIMESTAMP"]) for e in mine if e.get("MESSAGE_ID") == STARTING)
        found.append((min(us for us in starts if us > error_us) - error_us) / 1e6)
    return found


def one_round(fleet: Fleet, count: int) -> Row:
    """So many services fail at 1,024 sequences in the same moment, and must be ready at 512."""
    box = fleet.box
    names = [f"s{number:02}-of-{count}" for number in range(count)]  # new ones, of which nothing was learned
    fleet.configure({name: standin.service(number, fits=512) for number, name in enumerate(names)})
    standin.make_barrier(box)
    box.run(["systemctl", "restart", DAEMON], check=True)
    fleet.supervisor("apply", "--no-wait", timeout=600)
    pid, since_s = main_pid(box, DAEMON), time.time()
    standin.wait_for_arrival(box, count)
    before, manager = usage(box, pid), usage(box, 1)
    standin.open_barrier(box)
    box.wait_until(lambda: standin.all_ready(box, names), f"{count} services ready", timeout=600)
    after, manager_after = usage(box, pid), usage(box, 1)
    assert {name: fleet.steps(name) for name in names} == {name: [(1024, 512)] for name in names}
    status = fleet.status()
    assert {(row["condition"], row["effective"]) for row in status.values()} == {("ready", 512)}, status
    times = gaps_s(box, names, since_s)
    fleet.configure({})
    fleet.supervisor("apply", timeout=600)
    row = Row(
        count,
        statistics.median(times),
        percentile(times, 0.99),
        max(times),
        after.cpu_s - before.cpu_s,
        manager_after.cpu_s - manager.cpu_s,
        after,
    )
    print(row, flush=True)
    return row


def main(entries: int, services: Sequence[int]) -> int:
    """Measure and print; 1 when what each service costs grows with their number."""
    with Sandbox() as box:
        throughput.make_room(box)
        if entries:
            throughput.fill(box, OTHERS, entries)
        fleet = Fleet(box)
        standin.install(box)
        fleet.start_daemon()
        print(f"beside {entries:,} entries of another unit in the journal\n{HEAD}", flush=True)
        rows = [one_round(fleet, count) for count in services]
    last, least = rows[-1], min(rows[:-1] or rows, key=lambda row: row.each_s)
    growth = last.each_s / least.each_s
    print(f"processor time for each of {last.services}: {growth:.2f} times that for each of {least.services}")
    return 0 if growth <= GROWTH else 1
