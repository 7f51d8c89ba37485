"""The main job, live: a service that cannot start at vLLM's default comes up at a lower value, by itself.

A private systemd is booted, the daemon started as its shipped unit, and the YAML of the MiniMax-M2.5 example applied.
There is no GPU here, so `vllm` is the simulator: it prints what vLLM prints and runs out of memory where vLLM would.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time

import yaml

from tests.live.fleet import CONFIG, DAEMON, Fleet
from tests.sandbox import CLONE, SUPERVISOR, Sandbox

NAME = "minimax-m25"
# Four cards of 79.25 GiB with 200,064 tokens of vocabulary: 1,024 and 512 sequences do not fit beside what is on them.
HARDWARE = {
    "SIM_RUNNER": "v1",
    "SIM_VOCABULARY": 200064,
    "SIM_WEIGHTS_GIB": 214,
    "SIM_OUTSIDE_GIB": 3.2,
    "SIM_SHARDS": 125,
}
START_S = 6
"""How long each start takes, so that it can be watched; the real one loads for minutes."""

# Of some 400 lines a failed start prints, those a person would pick out.
TELLING = re.compile(
    r"non-default args|KV cache size|Graph capturing finished|\[multiproc_executor.*RuntimeError: CUDA"
    r"|startup complete|minimax-m25: |^(?:Starting|Started) |Main process exited"
)
COLOUR = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def styled(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if COLOUR else text


def heading(text: str) -> None:
    print(f"\n{styled('== ' + text, '1')}", flush=True)


def show(box: Sandbox, *argv: str, lines: int | None = None) -> None:
    """Run a command in the sandbox as an operator would, and show what it says."""
    print(styled("# " + " ".join(argv).replace(SUPERVISOR, "vllm-supervisor"), "36"), flush=True)
    said = (done := box.run(list(argv))).stdout + done.stderr
    print("\n".join(said.rstrip().splitlines()[:lines]), flush=True)
    if done.returncode:
        sys.exit(f"demo: {argv[0]} ended with {done.returncode}")


class Journal:
    """What the unit and everybody who speaks about it write, as `journalctl -f -u` shows it, thinned out."""

    def __init__(self, box: Sandbox) -> None:
        argv = ["journalctl", "-f", "-n0", "-o", "cat", "-u", f"vllm-{NAME}", "-u", DAEMON]
        self._process = box.popen(argv, stdout=subprocess.PIPE)
        self._thread = threading.Thread(target=self._print, daemon=True)
        self._thread.start()

    def _print(self) -> None:
        last = ""
        for line in self._process.stdout or ():
            text = line.strip()
            ours = text.startswith(f"{NAME}: ")
            if TELLING.search(text) and text != last:
                print(f"  {styled('journal', '2')} {styled(text[:170], '33' if ours else '2')}", flush=True)
                last = text

    def close(self) -> None:
        time.sleep(0.5)  # what was written last is announced within 250 ms
        self._process.kill()
        self._thread.join(5)


def main(start_s: float = START_S) -> int:
    """Show it; the exit code of `apply`."""
    began = time.monotonic()
    heading("A private systemd boots (nothing of this machine is touched)")
    with Sandbox() as box:
        fleet = Fleet(box)
        example = yaml.safe_load((CLONE / "packaging/examples/minimax-m25.yaml").read_text())
        simulated = {**example, "defaults": {"environment": {**HARDWARE, "SIM_START_S": start_s}}}
        box.write(CONFIG, yaml.safe_dump(simulated, sort_keys=False))
        show(box, "systemctl", "--version", lines=1)
        heading("What the operator wrote: no max_num_seqs, so vLLM takes 1024 on these cards")
        print(yaml.safe_dump(example, sort_keys=False), end="")
        heading("vllm-supervisor apply, and nobody touches anything after that")
        fleet.start_daemon()
        journal = Journal(box)
        applying = box.popen([SUPERVISOR, "apply"])
        code = applying.wait(600)
        if not code:  # the daemon says so by itself, a little later
            box.wait_until(lambda: fleet.history(NAME)[-1]["kind"] == "ready", "ready in the history")
        journal.close()
        if code:
            print(fleet.log())
            return code
        heading("It serves")
        body = json.dumps({"model": example["services"][NAME]["model"], "prompt": "The supervisor", "max_tokens": 8})
        url = "http://127.0.0.1:8000/v1/completions"
        show(box, "curl", "-s", url, "-H", "Content-Type: application/json", "-d", body)
        heading("What it says of itself")
        show(box, SUPERVISOR, "status")
        print()
        show(box, SUPERVISOR, "explain", NAME)
        print()
        show(box, "systemctl", "status", "--no-pager", "-n0", f"vllm-{NAME}", lines=9)
        heading("The unit as it is now")
        show(box, "systemctl", "cat", "--no-pager", f"vllm-{NAME}")
    print(styled(f"\nall of that took {time.monotonic() - began:.0f} s", "1"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
