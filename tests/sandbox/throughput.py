"""How fast a journal is read and judged, side by side with others on the same entries.

A unit prints a million lines as a serving vLLM does, a failure at the end. Then, in turn: our whole pipeline (read,
look, take apart, judge), `journalctl -o cat` to nothing, a plain loop over python-systemd's Reader, and fail2ban-regex
with a filter for the one sentence. Quoted are medians, and ratios of rates measured in the same round.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable

from tests.sandbox import CLONE, Sandbox

UNIT = "vllm-bench.service"
LINES = CLONE / "tests/corpus/none/0.32.0-ok.log"
FAILURE = CLONE / "tests/corpus/sampler-oom/0.32.0-warmup-sampler-1024.log"

# Prints what a serving vLLM prints: its start once, then requests and statistics, and at the end a failed start.
WRITER = """
import sys
start, failure, count = open(sys.argv[1]).read(), open(sys.argv[2]).read(), int(sys.argv[3])
access = 'INFO:     127.0.0.1:%d - "POST /v1/chat/completions HTTP/1.1" 200 OK\\n'
stats = ('(APIServer pid=7) INFO 11-29 17:00:00 [loggers.py:259] Engine 000: Avg prompt throughput: %d.0 tokens/s, Avg '
         'generation throughput: 900.0 tokens/s, Running: 12 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%%\\n')
sys.stdout.write(start)
for number in range(count):
    sys.stdout.write((stats if number % 10 == 0 else access) % (number % 50000))
sys.stdout.write(failure)
"""


def ours() -> int:
    """Everything the daemon does with an entry."""
    from vllm_supervisor.diagnosis import entry_from_journal, worth_reading
    from vllm_supervisor.follow import Follower
    from vllm_supervisor.host.journal import Journal, unit_matches

    follower, journal, read = Follower({UNIT: "bench"}), Journal(), 0
    journal.match(unit_matches([UNIT]))
    journal.seek_realtime(0)
    while True:
        entries, passed = journal.read(5_000, keep=worth_reading)
        read += passed
        for fields in entries:
            if entry := entry_from_journal(fields):
                follower.take(entry, time.monotonic())
        if passed < 5_000:
            return read


def reader() -> int:
    """The loop that python-systemd's documentation shows, with the same match."""
    from systemd import journal

    source = journal.Reader()
    source.add_match(_SYSTEMD_UNIT=UNIT)
    return sum(1 for _ in source)


def run(box: Sandbox, argv: list[str]) -> float:
    """Seconds a command in the sandbox takes, start-up included."""
    began = time.monotonic()
    box.run(argv, check=True, timeout=600)
    return time.monotonic() - began


def contestants(box: Sandbox) -> dict[str, Callable[[], float]]:
    """What is measured, by name."""
    python = [sys.executable, "-m", "tests.sandbox.throughput"]
    sentence = "CUDA out of memory occurred when warming up sampler with <F-ID>\\d+</F-ID> dummy requests"
    box.write("/etc/fail2ban/filter.d/vllm.conf", f"[Definition]\nfailregex = ^.*{sentence}.*$\n")
    found = {
        "ours": lambda: run(box, [*python, "--only", "ours"]),
        "journalctl -o cat": lambda: run(box, ["sh", "-c", f"journalctl -o cat _SYSTEMD_UNIT={UNIT} >/dev/null"]),
        "python-systemd Reader": lambda: run(box, [*python, "--only", "reader"]),
    }
    if shutil.which("fail2ban-regex"):
        argv = ["fail2ban-regex", "-m", f"_SYSTEMD_UNIT={UNIT}", "systemd-journal", "/etc/fail2ban/filter.d/vllm.conf"]
        found["fail2ban-regex"] = lambda: run(box, argv)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["ours", "reader"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print({"ours": ours, "reader": reader}[options.only]())
        return 0
    with Sandbox() as box:
        count = fill(box, options.entries)
        print(f"{count} entries in the journal of {UNIT}", flush=True)
        measure(contestants(box), count, options.rounds)
    return 0


def fill(box: Sandbox, entries: int) -> int:
    """Have the unit print; returns how many entries the journal then holds of it."""
    box.write("/srv/writer.py", WRITER)
    argv = [sys.executable, "/srv/writer.py", str(LINES), str(FAILURE), str(entries)]
    limits = [
        "LogRateLimitIntervalSec=1s",
        "LogRateLimitBurst=10000000",
        "LogExtraFields=VLLM_SUPERVISOR_SERVICE=bench",
    ]
    unit = ["systemd-run", "--wait", f"--unit={UNIT}", *(f"--property={limit}" for limit in limits)]
    box.run([*unit, *argv], check=True, timeout=300)
    box.run(["journalctl", "--sync"], check=True, timeout=300)
    counted = box.run([sys.executable, "-m", "tests.sandbox.throughput", "--only", "ours"], check=True, timeout=300)
    return int(counted.stdout)


def measure(found: dict[str, Callable[[], float]], count: int, rounds: int) -> None:
    took: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, once in found.items():
            took[name].append(once())
    for name, seconds in took.items():
        ratio = statistics.median(other / mine for other, mine in zip(seconds, took["ours"], strict=True))
        rate = count / statistics.median(seconds)
        print(f"{name:<24} {statistics.median(seconds):7.2f} s {rate:>10,.0f} entries/s   ours is {ratio:.2f} x")
    print(json.dumps({name: [round(one, 3) for one in seconds] for name, seconds in took.items()}))


if __name__ == "__main__":
    sys.exit(main())
