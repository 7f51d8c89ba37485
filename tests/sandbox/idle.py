"""What watching costs while nothing happens: sixteen services that serve, for a minute, beside others of the trade.

Side by side in one sandbox, in the same minute: our daemon; supervisord, which runs sixteen programs; monit, which asks
sixteen servers for /health; fail2ban, which follows the journal of sixteen units. Then our daemon alone while another
unit writes to the journal, and its system calls, counted. Processor time is the kernel's own, in nanoseconds.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.live.fleet import DAEMON, Fleet
from tests.sandbox import PYTHON, Sandbox, standin
from tests.sandbox.throughput import FILTER, SENTENCE, has_fail2ban
from tests.sandbox.usage import Usage, main_pid, usage

SERVICES = 16
SECONDS = 60
BOUND = 0.1
"""Percent of a core, for ours."""

JUDGED_FROM_S = 30
"""In less the few wake-ups there are fall into it or do not, and ours is not held against its bound."""

SETTLING_S = COUNTED_S = 10
"""Until all have started and settled, and for how long system calls are counted; no longer than the measurement."""

WRITERS = (100, 10_000)
"""Lines a second that another unit writes."""

# Writes so many lines a second, in ten portions, to its standard output.
WRITER = """
import sys, time
rate, due = int(sys.argv[1]), time.monotonic()
while True:
    sys.stdout.write("nothing that concerns anybody\\n" * (rate // 10))
    sys.stdout.flush()
    due += 0.1
    time.sleep(max(0, due - time.monotonic()))
"""


@dataclass(frozen=True)
class Row:
    """One program over some seconds: percent of a core, and memory at the end in KiB."""

    name: str
    percent: float
    end: Usage

    def __str__(self) -> str:
        memory = (self.end.private_kib, self.end.own_kib, self.end.shared_kib)
        return f"{self.name:<44} {self.percent:>8.3f} " + " ".join(f"{kib / 1024:>9.1f}" for kib in memory)


HEAD = f"{'':<44} {'CPU, %':>8} {'private':>9} {'own':>9} {'PSS, MiB':>9}"


def watched(box: Sandbox, pids: Mapping[str, int], seconds: float) -> list[Row]:
    """What these programs use in the same stretch of time."""
    before, began_s = {name: usage(box, pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    after, took_s = {name: usage(box, pid) for name, pid in pids.items()}, time.monotonic() - began_s
    return [Row(name, 100 * (after[name].cpu_s - before[name].cpu_s) / took_s, after[name]) for name in pids]


def calls(box: Sandbox, pid: int, seconds: float) -> dict[str, int]:
    """System calls that a process makes, by name."""
    command = f"timeout --signal=INT {seconds:g} strace -f -c -p {pid} 2>&1"
    text = box.run(["sh", "-c", command], timeout=seconds + 30).stdout
    rows = [line.split() for line in text.splitlines() if re.match(r" +\d+\.\d+ ", line)]
    return {row[-1]: int(row[3]) for row in rows if row[-1] != "total"}


# The others, each in a unit of its own.


def start(box: Sandbox, name: str, *argv: str) -> int:
    """Run a program as a unit; its process."""
    box.run(["systemd-run", "--quiet", f"--unit=other-{name}", "--property=Type=exec", *argv], check=True)
    return main_pid(box, f"other-{name}.service")


def supervisord(box: Sandbox) -> int:
    """Programs of its own, as many as there are services, which do what those do."""
    text = (
        "[supervisord]\nnodaemon=true\nuser=root\nlogfile=/dev/null\nlogfile_maxbytes=0\npidfile=/run/supervisord.pid\n"
    )
    for number in range(SERVICES):
        command = f"{standin.PROGRAM} serve --port {standin.FIRST_PORT + 100 + number} --max-num-seqs 1"
        text += (
            f'[program:s{number}]\ncommand={command}\nenvironment=FITS="1"\nstdout_logfile=NONE\nredirect_stderr=true\n'
        )
    box.write("/srv/supervisord.conf", text)
    return start(box, "supervisord", "/usr/bin/supervisord", "-c", "/srv/supervisord.conf")


def monit(box: Sandbox) -> int:
    """A cycle of 30 s, in which each service is asked for /health."""
    text = "set daemon 30\nset pidfile /run/monit.pid\nset statefile /run/monit.state\nset idfile /run/monit.id\n"
    for number in range(SERVICES):
        port = standin.FIRST_PORT + number
        text += f"check host s{number} with address 127.0.0.1\n"
        text += f"  if failed port {port} protocol http request /health then alert\n"
    box.write("/srv/monitrc", text, mode=0o600)
    return start(box, "monit", "/usr/bin/monit", "-I", "-c", "/srv/monitrc")


def fail2ban(box: Sandbox) -> int:
    """A jail with a filter for the sentence, on the journal of the same units."""
    box.write(FILTER, f"[Definition]\nfailregex = ^.*{SENTENCE}.*$\n")
    matches = " + ".join(f"_SYSTEMD_UNIT=vllm-s{number:02}.service" for number in range(SERVICES))
    jail = "[DEFAULT]\nbackend = systemd\naction =\n[sshd]\nenabled = false\n"
    jail += f"[vllm]\nenabled = true\nfilter = vllm\njournalmatch = {matches}\n"
    box.write("/etc/fail2ban/jail.local", jail)
    box.run(["mkdir", "-p", "/run/fail2ban"], check=True)
    return start(box, "fail2ban", "/usr/bin/fail2ban-server", "-xf", "start")


def main(seconds: int) -> int:
    """Measure and print; 1 when ours uses more than its bound."""
    with Sandbox() as box:
        fleet = Fleet(box)
        standin.install(box)
        box.write("/srv/writer.py", WRITER)
        fleet.configure({f"s{number:02}": standin.service(number, fits=1024) for number in range(SERVICES)})
        fleet.start_daemon()
        fleet.supervisor("apply", timeout=300)
        ours = main_pid(box, DAEMON)
        pids = {"ours": ours}
        if shutil.which("supervisord"):
            pids["supervisord"] = supervisord(box)
        if shutil.which("monit"):
            pids["monit, a cycle of 30 s"] = monit(box)
        if has_fail2ban():
            pids["fail2ban"] = fail2ban(box)
        time.sleep(min(SETTLING_S, seconds))
        print(f"{SERVICES} services ready, {seconds} s\n{HEAD}")
        rows = watched(box, pids, seconds)
        print(*rows, sep="\n", flush=True)
        for name in ("supervisord", "monit", "fail2ban"):
            box.run(["systemctl", "kill", "--signal=KILL", f"other-{name}.service"])  # a stop takes them up to 10 s
        counted = calls(box, ours, seconds)
        print(
            f"system calls of ours in {seconds} s:",
            ", ".join(f"{n} {c}" for n, c in counted.items()) or "none",
            flush=True,
        )
        for rate in WRITERS:
            unit = ["--property=LogRateLimitIntervalSec=1s", "--property=LogRateLimitBurst=10000000"]
            start(box, "writer", *unit, PYTHON, "/srv/writer.py", str(rate))
            print(*watched(box, {f"ours, while another unit writes {rate:,} lines/s": ours}, seconds / 2), flush=True)
            counted_s = min(COUNTED_S, seconds)
            counted = calls(box, ours, counted_s)
            print(f"  system calls in {counted_s} s:", ", ".join(f"{n} {c}" for n, c in counted.items()), flush=True)
            box.run(["systemctl", "stop", "other-writer.service"], check=True)
    if seconds < JUDGED_FROM_S:
        print(f"nothing is judged: that takes {JUDGED_FROM_S} s")
        return 0
    return 0 if rows[0].percent <= BOUND else 1
