"""`./dev bench`: how long a recovery takes, and what else is measured in the modules beside this one.

A recovery goes from the error line to systemd's "Starting" of the run at the lower value. Both times are journald's
own, so nothing of the measurement is in them.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from tests.live.fleet import Fleet
from tests.sandbox import Sandbox, SandboxError, endurance, idle, load, throughput

SERVICE = {
    "model": "org/small",
    "gpus": [0],
    "environment": {"SIM_RUNNER": "v1", "SIM_VOCABULARY": 200064, "SIM_OUTSIDE_GIB": 2.4, "SIM_START_S": 0.5},
    "arguments": {"gpu-memory-utilization": 0.95, "max-model-len": 8192},
}
STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"


def recovery_s(fleet: Fleet) -> float:
    """Let one recovery happen, from 1,024 to 512 sequences; seconds from the error to the next start."""
    fleet.supervisor("apply")
    entries = fleet.box.journal("--unit=vllm-a.service")
    error = [int(e["__REALTIME_TIMESTAMP"]) for e in entries if "with 1024 dummy requests" in str(e.get("MESSAGE"))]
    starts = [int(e["__REALTIME_TIMESTAMP"]) for e in entries if e.get("MESSAGE_ID") == STARTING]
    last_failed_start = starts[-2]
    return (starts[-1] - min(time for time in error if time > last_failed_start)) / 1e6


def recovery(runs: int) -> int:
    """Print each recovery, and the median and the maximum of all."""
    took = []
    with Sandbox() as box:
        fleet = Fleet(box)
        fleet.configure({"a": SERVICE})
        fleet.start_daemon()
        for number in range(runs):
            if number:
                fleet.supervisor("forget", "a")
            took.append(recovery_s(fleet))
            print(f"recovery {number + 1}: {took[-1]:.3f} s", flush=True)
    print(f"error line to new start, {runs} runs: median {statistics.median(took):.3f} s, maximum {max(took):.3f} s")
    return 0


def main(argv: list[str]) -> int:
    """Measure what is named, or everything; 1 when a bound is not held."""
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measure WHAT, or everything with its defaults.")
    parser.set_defaults(runs=20, entries=None, rounds=3, services=load.SERVICES)
    parser.set_defaults(recoveries=endurance.RECOVERIES, seconds=idle.SECONDS)
    what = parser.add_subparsers(metavar="WHAT", dest="what")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return what.add_parser(name, help=text, argument_default=argparse.SUPPRESS)

    add("recovery", "from the error line to the new start").add_argument("--runs", type=int)
    one = add("throughput", "reading a journal, beside others")
    one.add_argument("--entries", type=int)
    one.add_argument("--rounds", type=int)
    one = add("load", "many services that fail at once")
    one.add_argument("services", type=int, nargs="*", metavar="N")
    one.add_argument("--entries", type=int, help="of another unit, in the journal")
    one = add("endurance", "what grows with the number of recoveries")
    one.add_argument("recoveries", type=int, nargs="?", default=endurance.RECOVERIES)  # a "?" takes no other default
    add("idle", "what watching costs, beside others").add_argument("--seconds", type=int)
    options = parser.parse_args(argv)
    measures = {
        "recovery": lambda: recovery(options.runs),
        "throughput": lambda: throughput.main(options.entries or 1_000_000, options.rounds),
        "load": lambda: load.main(
            load.ENTRIES if options.entries is None else options.entries, options.services or load.SERVICES
        ),
        "endurance": lambda: endurance.main(options.recoveries),
        "idle": lambda: idle.main(options.seconds),
    }
    return max(measures[name]() for name in ([options.what] if options.what else measures))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SandboxError as error:
        sys.exit(str(error))
