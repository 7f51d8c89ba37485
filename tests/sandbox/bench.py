"""How long a recovery takes: from the error line to systemd's "Starting" of the run at the lower value.

Both times are journald's own, so nothing of the measurement is in them. Prints median and maximum over the runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from tests.live.fleet import Fleet
from tests.sandbox import Sandbox

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
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


if __name__ == "__main__":
    sys.exit(main())
