"""Crashes at each effect: a process of ours is killed by SIGKILL just before the n-th thing that it does to the world.

What it does is read from a recording of an uninterrupted run, by strace. An effect is every system call but those that
are named here as harmless: so a new effect is covered without being listed, and so is one of a new kind. A look is
taken for an effect sooner than the other way round. Left out are only

- calls that failed, and files that were opened without being made: nothing changed;
- programs that only look, by the first word they are given;
- the watchdog's WATCHDOG=1, which says nothing but that the loop turns, what a command prints, and the name of its
  holder in the lock;
- what sqlite does to its index in shared memory, which whoever opens the store first makes anew;
- syncs, which make a difference to a power cut only: see `unsynced`;
- all but the first and the last of several calls in a row on one file: a commit of sqlite is a dozen of them.

Killed before an effect is killed after the one before it, since nothing changes in between: so every effect is seen
with the process dead before it and dead after it.

strace counts the calls of each name for itself, so a moment is a name and a number. When a run makes a call more than
the recording, the moment is another one nearby, and what must hold there is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from tests.live.fleet import DAEMON, Fleet
from tests.sandbox import PYTHON, SUPERVISOR
from tests.sandbox.root import INSTALLED
from vllm_supervisor import units

HARMLESS = (
    # looks
    "access capget clock_getres clock_gettime faccessat faccessat2 fgetxattr fstat fstatfs getcwd getdents getdents64 "
    "getegid geteuid getgid getgroups getpeername getpgrp getpid getppid getpriority getrandom getresgid getresuid "
    "getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr ioctl lgetxattr listxattr "
    "lseek lstat newfstatat pread64 preadv preadv2 read readahead readlink readlinkat readv stat statfs statx sysinfo "
    "time times uname "
    # waits
    "clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_wait futex inotify_add_watch inotify_init "
    "inotify_init1 inotify_rm_watch nanosleep pause poll ppoll pselect6 recvfrom recvmmsg recvmsg restart_syscall "
    "select wait4 waitid "
    # is about its own memory, signals and descriptors, which end with it
    "arch_prctl brk chdir close close_range connect dup dup2 dup3 eventfd eventfd2 exit exit_group fadvise64 fchdir "
    "fcntl flock madvise membarrier memfd_create mmap mprotect mremap munmap pidfd_open pipe pipe2 prctl prlimit64 "
    "rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend sched_getaffinity sched_yield "
    "set_robust_list set_tid_address setrlimit setsockopt shutdown sigaltstack signalfd4 socket socketpair "
    "timerfd_create umask"
)
LOOKS = re.compile(r"systemctl (show|list-jobs|--version)|nvidia-smi")

INSIDE = f"{INSTALLED}/src/tests/live/inside.py"
KEPT = "/opt/kept.tar"
_PLAN = "/run/crash/plan"
# The n-th start of the daemon is traced as the n-th line of the plan says, and is left alone when there is none.
_RUN = f"""#!/bin/sh
number=$(ls /run/crash 2>/dev/null | grep -c '^trace')
line=$(sed -n "$((number + 1))p" {_PLAN} 2>/dev/null)
[ -n "$line" ] || exec {SUPERVISOR} run
exec $line -D -o /run/crash/trace.$number {SUPERVISOR} run
"""
# @debug for strace, which is started in the daemon's place and in its sandbox.
_DROP_IN = (
    "[Service]\nExecStart=\nExecStart=/opt/crash/run\nSystemCallFilter=@debug\nReadWritePaths=-/run/crash\n"
    "RestartSec={restart}\n"
)


class Moment(NamedTuple):
    """Just before an effect.

    Attributes:
        call: name of the system call.
        number: how many of that name there are up to then.
        text: the call with its arguments, or the program that is started.
    """

    call: str
    number: int
    text: str


def strace(moment: Moment | None = None) -> list[str]:
    """The words that run what follows and kill it at a moment, or only record it; `-o FILE` is yet to be added."""
    calls = ",".join(f"?{call}" for call in HARMLESS.split())
    kill = [f"--inject={moment.call}:signal=SIGKILL:when={moment.number}"] if moment else []
    # It follows children up to what they become: then they are other programs, and no longer ours to kill.
    return ["strace", "-f", "--detach-on=execve", "-y", "-qq", "-s", "200", f"--trace=!{calls}", *kill]


_CALL = re.compile(r"(?P<pid>\d+) +(?P<call>\w+)\((?P<rest>.*)")
_PROGRAM = re.compile(r"\d+ +execve\(.*?, \[(?P<words>.*)\], .*<(detached|unfinished) \.\.\.>")
_SYNC = re.compile("fsync|fdatasync")
_FAILED = re.compile(r"\) += -1 ")
_NOTHING = re.compile(r"WATCHDOG=1|store\.sqlite-shm|/run/vllm-supervisor/lock>|^write\(\d<pipe:")


def moments(trace: str) -> list[Moment]:
    """Every moment of a recording, in order."""
    found = []
    for _, same in groupby(_effects(trace), lambda effect: _SYNC.match(effect.call) or _file(effect) or effect):
        first, *others = list(same)
        found += [] if _SYNC.match(first.call) else [first, *others[-1:]]
    return found


def _file(effect: Moment) -> str:
    """The file that a call is about by a descriptor of it; "" for other calls."""
    found = re.search(r"^\w+\(\d+<(/[^>]*)>|^open.* = \d+<(/[^>]*)>", effect.text)
    return found[1] or found[2] if found else ""


def _effects(trace: str) -> Iterator[Moment]:
    lines = trace.splitlines()
    main = lines[0].split()[0] if lines else ""
    counts: dict[str, int] = {}
    for number, line in enumerate(lines):
        made = _CALL.match(line)
        if not made or made["pid"] != main:
            continue
        call, text = made["call"], line.partition(" ")[2].strip()
        counts[call] = counts.get(call, 0) + 1
        if call in ("vfork", "fork", "clone", "clone3"):
            text = next(
                (_words(found["words"]) for later in lines[number + 1 :] if (found := _PROGRAM.match(later))), ""
            )
            if LOOKS.match(text):
                continue
        elif call in ("open", "openat") and "O_CREAT" not in text:
            continue
        if call != "execve" and not _FAILED.search(line) and not _NOTHING.search(text):
            yield Moment(call, counts[call], text)


def _words(array: str) -> str:
    return " ".join(re.findall(r'"((?:[^"\\]|\\.)*)"', array))


class Rig:
    """A fleet whose daemon, and whose commands, can be killed at a moment, again and again from the same beginning."""

    def __init__(self, fleet: Fleet, *, restart: str = "100ms", environment: Mapping[str, str] | None = None) -> None:
        self.fleet, self.box, self._environment = fleet, fleet.box, dict(environment or {})
        more = "".join(f"Environment={name}={value}\n" for name, value in self._environment.items())
        self._drop_in = _DROP_IN.format(restart=restart) + more
        self.box.write("/opt/crash/run", _RUN, mode=0o755)

    def keep(self, *, daemon: bool = False) -> None:
        """Take the store and the units as they are now for the beginning; every unit is down, or goes on as it is."""
        if daemon:
            self.box.write(f"/etc/systemd/system/{DAEMON}.d/crash.conf", self._drop_in)
        self.box.run([PYTHON, "-I", "-S", INSIDE, "keep", KEPT], check=True)

    def restore(self, *names: str) -> None:
        """Go back to the beginning, with the daemon and these units down."""
        self.box.run([PYTHON, "-I", "-S", INSIDE, "restore", KEPT, *names], check=True)

    def start_daemon(self, *plan: Moment | None) -> None:
        """Start the daemon; its n-th start dies at the n-th moment, or is recorded where that is None."""
        if plan:
            self.box.write(_PLAN, "".join(f"{' '.join(strace(moment))}\n" for moment in plan))
        self.box.run(["systemctl", "start", DAEMON])

    def run(self, *arguments: str, moment: Moment | None) -> str:
        """Run a command of ours, killed at a moment or only recorded. Returns its trace."""
        command = [*strace(moment), "-o", "/run/crash/command", SUPERVISOR, *arguments]
        self.box.run(command, env={"PYTHONDONTWRITEBYTECODE": "1", **self._environment})
        return self.box.read("/run/crash/command")

    def look(self) -> dict[str, Any]:
        """How everything is."""
        return self._inside("look")

    def settle(self, *, starts: int = 0, timeout_s: float = 90) -> dict[str, Any]:
        """How everything is once it serves, `starts` of the daemon having died, or when the time is over."""
        return self._inside("settle", str(starts), str(timeout_s))

    def _inside(self, *words: str) -> dict[str, Any]:
        done = self.box.run([PYTHON, "-I", "-S", INSIDE, *words], check=True, timeout=120)
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen


_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_TIMES = {"time_us", "learned_us", "applied_us", "created_us", "id"}


def outcome(seen: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same whenever the process died: everything but times, and the names systemd gave to runs.

    A remedy ends with one row, which is not always the same one: a daemon that dies right after it queued the start
    finds the unit started when it comes back, and says so. `apply` adds a row for each time that it is run.
    """
    tables, texts = seen["tables"], seen["units"]
    runs: dict[str, str] = {}
    history = []
    for row in tables.get("history", []):
        details = json.loads(row["details"])
        kind, run = row["kind"], runs.setdefault(row["invocation"], f"run {len(runs)}")
        if kind in ("started-again", "left-alone"):
            kind, details = "remedy ended", {}
        history.append((row["service"], kind, run, json.dumps(details, sort_keys=True)))
    return {
        "timed out": seen["timed_out"],
        "integrity": seen["integrity"],
        "units": {name: _TIME.sub("TIME", re.sub("(?m)^# Checksum.*\n", "", text)) for name, text in texts.items()},
        "changed or half-written units": not_intact(seen),
        "files": seen["files"],
        "starts": seen["starts"],
        "states": {
            name: [state[key] for key in ("ActiveState", "SubState", "UnitFileState", "NeedDaemonReload", "Job")]
            for name, state in seen["states"].items()
        },
        "started from another text": [
            name
            for name, text in texts.items()
            if seen["environments"][name].get("SUPERVISED_RUN") != units.run_hash(text)
        ],
        "history": sorted({row for row in history if row[1] in ("applied", "removed")})
        + sorted(row for row in history if row[1] not in ("applied", "removed")),
        "lowered and not said": [run for run, times in seen["said"].items() if not times],
        **{
            name: [
                {k: _TIME.sub("TIME", str(v)) for k, v in row.items() if k not in _TIMES and k != "treated"}
                for row in rows
            ]
            for name, rows in tables.items()
            if name not in ("history", "meta")
        },
    }


def not_intact(seen: Mapping[str, Any]) -> list[str]:
    """Units of ours that are not as they were written."""
    return [name for name, text in seen["units"].items() if not units.intact(text)]


def losses(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """In what an outcome differs from that of the uninterrupted run."""
    found = []
    for key, value in expected.items():
        other = actual.get(key)
        if other != value and isinstance(value, list) and isinstance(other, list):
            missing, more = [one for one in value if one not in other], [one for one in other if one not in value]
            found.append(f"{key}: {len(other)} instead of {len(value)}, without {missing}, with {more}")
        elif other != value:
            found.append(f"{key}: {other} instead of {value}")
    return found


def unsynced(trace: str) -> list[str]:
    """Renames of a recording after which a power cut could leave an empty file, or the one before.

    What is renamed must have been synced since it was written, and its directory must be synced next.
    """
    found: list[str] = []
    synced: set[str] = set()
    effects = list(_effects(trace))
    for effect, after in zip(effects, [*effects[1:], Moment("", 0, "")], strict=True):
        file = _file(effect)
        if effect.call in ("fsync", "fdatasync"):
            synced.add(file)
        elif effect.call in ("write", "pwrite64", "writev", "ftruncate"):
            synced.discard(file)
        elif effect.call.startswith("rename"):
            source, target = re.findall(r'"(/[^"]*)"', effect.text)
            if source not in synced or not (after.call == "fsync" and f"<{target.rpartition('/')[0]}>" in after.text):
                found.append(effect.text)
    return found
