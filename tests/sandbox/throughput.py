"""How fast a journal is read and judged, side by side with others on the same entries.

A unit prints as a serving vLLM does, and then a start of it fails. In turn, round by round: our whole pipeline (read,
look, take apart, judge), `journalctl -o cat` to nothing, a plain loop over python-systemd's Reader, and fail2ban-regex
with a filter for the one sentence; start-up included. Then ours once more, with as many entries of another unit, and in
turn without them. Last, the cost of a line with ten times the rules and a hundred times.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from tests.sandbox import CLONE, PYTHON, Sandbox
from vllm_supervisor.diagnosis import CATALOGUE, Catalogue, Rule, Tracker, entry_from_journal, worth_reading
from vllm_supervisor.follow import DRAIN_LIMIT_S, Follower
from vllm_supervisor.host.journal import Journal, unit_matches

UNIT, OTHER = "vllm-bench.service", "vllm-other.service"
HEALTHY = CLONE / "tests/corpus/none/0.32.0-ok.log"
FAILING = CLONE / "tests/corpus/sampler-oom/0.32.0-warmup-sampler-1024.log"
VERDICT = "sampler-oom"
SENTENCE = r"CUDA out of memory occurred when warming up sampler with <F-ID>\d+</F-ID> dummy requests"
FILTER = "/etc/fail2ban/filter.d/vllm.conf"
JUDGED_FROM = 500_000
"""Entries. With fewer the start of the programs outweighs the reading, and no ratio is held against its bound."""

BESIDE_AT_MOST = 1.5
"""Times as long beside as many entries of another unit: journald's index leads past them. Without it, twice as long."""

RULES_AT_MOST = 1.1
"""Times as long with ten or a hundred times the rules: a line is held against those whose words it has. Were the few
lines that are held against rules at all held against each, it would be 1.3 with a hundred times as many."""

TRIES = 100
"""In turn, in each round; the least counts, since what disturbs only ever adds."""

# Prints a start, and then what a serving vLLM prints: accesses and statistics.
WRITER = """
import sys
start, count = open(sys.argv[1]).read(), int(sys.argv[2])
access = 'INFO:     127.0.0.1:%d - "POST /v1/chat/completions HTTP/1.1" 200 OK\\n'
stats = ('(APIServer pid=7) INFO 11-29 17:00:00 [loggers.py:259] Engine 000: Avg prompt throughput: %d.0 tokens/s, Avg '
         'generation throughput: 900.0 tokens/s, Running: 12 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%%\\n')
sys.stdout.write(start)
for number in range(count):
    sys.stdout.write((stats if number % 10 == 0 else access) % (number % 50000))
"""


@dataclass(frozen=True)
class Row:
    """One line of the result.

    Attributes:
        name: what was measured.
        took_s: seconds, the median.
        lines: how many lines that was.
        ratio: how many times as long as `than` it took.
        at_least: the ratio it must reach; None where there is no such bound.
        at_most: the ratio it must not exceed; None where there is no such bound.
    """

    name: str
    took_s: float
    lines: int
    ratio: float | None = None
    than: str = "ours"
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool:
        if self.ratio is None:
            return True
        return (self.at_least or 0) <= self.ratio <= (self.at_most or self.ratio)

    def __str__(self) -> str:
        took = f"{self.took_s:.2f} s" if self.took_s >= 0.1 else f"{self.took_s * 1e3:.2f} ms"
        ratio = "" if self.ratio is None else f"{self.ratio:6.2f} x {self.than}"
        bound = "" if self.at_least is None else f", must be {self.at_least:g} or more"
        bound += "" if self.at_most is None else f", must be {self.at_most:g} or less"
        return f"{self.name:<40} {took:>9} {self.lines / self.took_s:>12,.0f}  {ratio}{bound}".rstrip()


HEAD = f"{'':<40} {'took':>9} {'lines/s':>12}"

# What runs in the sandbox, each in a process of its own.

# The loop that python-systemd's documentation shows, with the same match.
READER = f"""
from systemd import journal
source = journal.Reader()
source.add_match(_SYSTEMD_UNIT={UNIT!r})
print(sum(1 for _ in source))
"""
OURS = [PYTHON, "-m", "tests.sandbox.throughput"]


def ours() -> dict[str, object]:
    """Do everything the daemon does with an entry."""
    follower, journal, read = Follower({UNIT: "bench"}), Journal(), 0
    journal.match(unit_matches([UNIT]))
    journal.seek_realtime(0)
    while True:
        entries, passed = journal.read(5_000, keep=worth_reading)
        read += passed
        for fields in entries:
            if entry := entry_from_journal(fields):
                follower.take(entry, time.monotonic())
        if journal.caught_up:
            due = follower.due(time.monotonic() + DRAIN_LIMIT_S)
            return {"entries": read, "verdicts": [diagnosis.rule for _, diagnosis in due]}


# The journal.


def fill(box: Sandbox, unit: str, entries: int) -> None:
    """Have a unit print so many lines, and fail in its next start."""
    box.write("/srv/writer.py", WRITER)
    for log, count in ((HEALTHY, entries), (FAILING, 0)):
        # As for our units, "started" would mean that it serves: a one-shot never is.
        keys = ["Type=oneshot", "LogRateLimitIntervalSec=1s", "LogRateLimitBurst=10000000"]
        keys += ["LogExtraFields=VLLM_SUPERVISOR_SERVICE=bench"]
        argv = ["systemd-run", "--quiet", "--wait", "--collect", f"--unit={unit}", *(f"--property={k}" for k in keys)]
        box.run([*argv, PYTHON, "/srv/writer.py", str(log), str(count)], check=True, timeout=600)
    box.run(["journalctl", "--sync"], check=True, timeout=600)


def make_room(box: Sandbox) -> None:
    """Let the journal keep everything: a million entries are 0.6 GB."""
    box.write("/etc/systemd/journald.conf.d/bench.conf", "[Journal]\nSystemMaxUse=8G\nSystemKeepFree=1M\n")
    box.run(["systemctl", "restart", "systemd-journald"], check=True)


# The contestants.


@dataclass(frozen=True)
class Contestant:
    """A program that reads the unit's entries; its bounds are those of `Row`."""

    name: str
    argv: Sequence[str]
    at_least: float | None = None
    at_most: float | None = None


def contestants(box: Sandbox) -> list[Contestant]:
    cat = f"journalctl -o cat _SYSTEMD_UNIT={UNIT} >/dev/null"
    found = [
        Contestant("ours", OURS),
        Contestant("journalctl -o cat", ["sh", "-c", cat], 1.0),
        Contestant("python-systemd's Reader", [PYTHON, "-c", READER], 4.0),
    ]
    if has_fail2ban():
        box.write(FILTER, f"[Definition]\nfailregex = ^.*{SENTENCE}.*$\n")
        argv = ["fail2ban-regex", "-m", f"_SYSTEMD_UNIT={UNIT}", "systemd-journal", FILTER]
        found.append(Contestant("fail2ban-regex", argv, 5.0))
    return found


def has_fail2ban() -> bool:
    """Whether it is installed, and its interpreter has python-systemd."""
    if not shutil.which("fail2ban-regex"):
        return False
    return subprocess.run(["/usr/bin/python3", "-c", "import systemd.journal"], capture_output=True).returncode == 0


def check(contestant: Contestant, said: str) -> None:
    """What reads everything and finds nothing would be measured for nothing."""
    if contestant.name.startswith("ours") and VERDICT not in said:
        raise AssertionError(f"ours did not find the failure: {said}")
    if contestant.name == "fail2ban-regex" and not re.search(r"[1-9]\d* matched", said):
        raise AssertionError(f"fail2ban-regex did not find the sentence: {said}")


def took_s(box: Sandbox, contestant: Contestant) -> float:
    """Seconds a contestant takes, start-up included."""
    began = time.monotonic()
    done = box.run(contestant.argv, check=True, timeout=600)
    took = time.monotonic() - began
    check(contestant, done.stdout)
    return took


def race(box: Sandbox, entries: int, rounds: int) -> list[Row]:
    """All on the same journal, each in each round; then ours on a journal with as much of another unit."""
    fill(box, UNIT, entries)
    found = contestants(box)
    lines = json.loads(box.run(OURS, check=True, timeout=600).stdout)["entries"]
    print(f"{lines:,} entries of {UNIT} in the journal, {rounds} rounds", file=sys.stderr)
    times = {each.name: list[float]() for each in found}
    for _ in range(rounds):
        for each in found:
            times[each.name].append(took_s(box, each))
    mine = times["ours"]
    rows = [Row("ours", statistics.median(mine), lines)]
    rows += [compared(each, times[each.name], mine, lines) for each in found[1:]]
    return [*rows, beside(box, entries, rounds, lines)]


def beside(box: Sandbox, entries: int, rounds: int, lines: int) -> Row:
    """Ours on a journal with as much of another unit, and in the same round on the journal as it was before."""
    box.run(["cp", "-a", "/var/log/journal", "/srv/before"], check=True, timeout=600)
    fill(box, OTHER, entries)
    before = ["unshare", "--mount", "sh", "-c", 'mount --bind /srv/before /var/log/journal && exec "$@"', "sh", *OURS]
    with_other = Contestant("ours, with as much of another unit", OURS, at_most=BESIDE_AT_MOST)
    turns = [took_s(box, each) for _ in range(rounds) for each in (Contestant("ours", before), with_other)]
    return compared(with_other, turns[1::2], turns[::2], lines)


def compared(each: Contestant, times: list[float], mine: list[float], lines: int) -> Row:
    """Ratios are of the same round, so that a busy machine is busy for both."""
    ratio = statistics.median(theirs / own for theirs, own in zip(times, mine, strict=True))
    return Row(each.name, statistics.median(times), lines, ratio, at_least=each.at_least, at_most=each.at_most)


# The number of rules.


def catalogue_of(count: int) -> Catalogue:
    """The first rows, or all and more of their kind: each failure has words of its own, as a new row has."""
    more = (variant(rule, number) for number, rule in enumerate(cycle(CATALOGUE.rules)))
    rules = list(CATALOGUE.rules[:count])
    while len(rules) < count:
        rules.append(next(more))
    return Catalogue(rules)


def variant(rule: Rule, number: int) -> Rule:
    words = tuple(f"{word}_{number}" for word in rule.anchors or sorted(rule.exceptions))
    pattern = re.compile(f"{number}: (?:{rule.pattern.pattern})", rule.pattern.flags)
    return replace(rule, id=f"{rule.id}-{number}", anchors=words, exceptions=frozenset(), pattern=pattern)


def judged(lines: Iterable[bytes], catalogue: Catalogue) -> str | None:
    """The verdict on a log with these rules."""
    tracker = Tracker(catalogue=catalogue)
    for line in lines:
        tracker.line(line)
    diagnosis = tracker.diagnosis()
    return diagnosis.rule if diagnosis else None


def processor_s(lines: Iterable[bytes], catalogue: Catalogue) -> float:
    """Seconds of processor time for a log."""
    began = time.process_time()
    judged(lines, catalogue)
    return time.process_time() - began


def by_rules(rounds: int) -> list[Row]:
    """A whole log with 10, 100 and 1,000 rules."""
    catalogues = {count: catalogue_of(count) for count in (10, 100, 1000)}
    rows = []
    for name, path, verdict in (("a start that fails", FAILING, VERDICT), ("a healthy start", HEALTHY, None)):
        lines = path.read_bytes().splitlines()
        assert {judged(lines, catalogue) for catalogue in catalogues.values()} == {verdict}
        times = dict.fromkeys(catalogues, 1e9)
        for count, catalogue in (item for _ in range(rounds * TRIES) for item in catalogues.items()):
            times[count] = min(times[count], processor_s(lines, catalogue))
        for count, took in times.items():
            ratio = None if count == 10 else took / times[10]
            bound = None if count == 10 else RULES_AT_MOST
            rows.append(Row(f"{name}, {count:,} rules", took, len(lines), ratio, than="10 rules", at_most=bound))
    return rows


def main(entries: int, rounds: int) -> int:
    """Measure and print; 1 when a ratio is beyond its bound."""
    with Sandbox() as box:
        make_room(box)
        rows = race(box, entries, rounds)
    rows += by_rules(rounds)
    print(HEAD, *rows, sep="\n")
    if not any(row.name == "fail2ban-regex" for row in rows):
        print("fail2ban-regex is left out: fail2ban or python3-systemd is not installed")
    return exit_code(rows, entries)


def exit_code(rows: Iterable[Row], entries: int) -> int:
    """1 when a ratio is beyond its bound."""
    if entries < JUDGED_FROM:
        print(f"no ratio is judged: that takes {JUDGED_FROM:,} entries")
        return 0
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    print(json.dumps(ours()))
