"""The host refuses, hangs, forgets and breaks: nothing is half done, what was refused is done later, once."""

from __future__ import annotations

import json
import time
from subprocess import PIPE

import pytest

from tests.faults import fault
from tests.live.fleet import DAEMON, VLLM, Fleet
from tests.live.test_recovery import SINGLE, with_environment
from tests.sandbox import CLONE, PYTHON, SUPERVISOR

STATE = "/var/lib/vllm-supervisor"
STORE = f"{STATE}/store.sqlite"
UNITS = "/etc/systemd/system"
# 1024 sequences do not fit and 512 do.
FAILING = with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4, SIM_START_S=1)
ROOMY = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6, SIM_START_S=0.5)


@pytest.fixture
def fleet(box):
    return Fleet(box)


def drop_in(fleet, name, text):
    """One more file of settings for the daemon's own unit."""
    fleet.box.write(f"{UNITS}/{DAEMON}.d/{name}.conf", f"[Service]\n{text}\n")


def on_path(fleet, program, text):
    """A program that the daemon finds before the real one, which `"$real" "$@"` runs."""
    real = fleet.box.run(["sh", "-c", f"command -v {program}"]).stdout.strip()
    fleet.box.write(f"/opt/shim/{program}", f"#!/bin/sh\nreal={real}\n{text}\n", mode=0o755)
    drop_in(fleet, "shim", f"Environment=PATH=/opt/shim:{SUPERVISOR.rpartition('/')[0]}:/usr/bin:/bin")


def daemon(fleet, prop="MainPID"):
    return fleet.box.run(["systemctl", "show", DAEMON, "--value", "-p", prop]).stdout.strip()


def said(fleet, text, *more):
    """Entries of the daemon that hold a text."""
    return [entry for entry in fleet.box.journal("-u", DAEMON, *more) if text in str(entry["MESSAGE"])]


def wait_said(fleet, text):
    return fleet.box.wait_until(lambda: said(fleet, text), f"the daemon says: {text}")


def again(fleet):
    """What the daemon tries again every ten seconds it tries at once."""
    fleet.box.run(["systemctl", "reload", DAEMON], check=True)


def start_once(fleet, name="a"):
    """Apply a service that systemd does not start again by itself when it fails; no daemon is there."""
    fleet.box.write(f"{UNITS}/vllm-{name}.service.d/once.conf", "[Service]\nRestart=no\n")
    fleet.supervisor("apply", "--no-wait")


def wait_failed(fleet, name="a"):
    fleet.box.wait_until(lambda: fleet.show(name, "ActiveState") == "failed", "a failed start")


def one_step(fleet, name="a"):
    """It ends ready, after one step; in words."""
    fleet.wait_for(name, "ready")
    assert fleet.steps(name) == [(1024, 512)], fleet.log()
    assert "--max-num-seqs 512" in fleet.unit(name)
    return "one step, 1024 to 512, and ready"


@fault(
    "systemctl hangs",
    made="a `systemctl` that does not end is put before the real one for three times WatchdogSec=, while a start fails",
    promised="the watchdog is fed while a call lasts, 30 s at most; once systemctl answers, the failure is treated",
)
def test_systemctl_hangs(fleet, seen):
    """What happens at the end of the 30 s is seen by the test of `programs`."""
    hang, calls = "/run/hang", "/run/calls"
    wait = f"[ -e {hang} ] && date +%s >>{calls} && while [ -e {hang} ]; do sleep 0.1; done"
    on_path(fleet, "systemctl", f'{wait}\nexec "$real" "$@"')
    drop_in(fleet, "watchdog", "WatchdogSec=2s")
    fleet.configure({"a": {**FAILING, "executable": fleet.held()}})
    fleet.start_daemon()
    pid = daemon(fleet)
    fleet.supervisor("apply", "--no-wait")
    fleet.box.run(["touch", hang], check=True)
    fleet.box.wait_until(lambda: fleet.box.run(["test", "-s", calls]).returncode == 0, "a call")
    fleet.let_go()
    end_s = time.monotonic() + 6
    fleet.box.wait_until(lambda: time.monotonic() > end_s, "three times as long as the watchdog allows")
    assert fleet.steps("a") == []

    fleet.box.run(["rm", hang], check=True)

    end = one_step(fleet)
    assert daemon(fleet) == pid
    seen(f"the same daemon; {end}")


@fault(
    "PID 1 refuses",
    made="a `systemctl` that answers `Access denied` is put before the real one, while a start fails",
    promised="nothing is touched; once systemd answers, the failure is treated",
)
def test_systemctl_refuses(fleet, seen):
    """The daemon says so and goes on."""
    on_path(fleet, "systemctl", '[ -e /run/broken ] && echo Access denied >&2 && exit 1\nexec "$real" "$@"')
    fleet.configure({"a": {**FAILING, "executable": fleet.held()}})
    fleet.start_daemon()
    pid = daemon(fleet)
    fleet.supervisor("apply", "--no-wait")
    fleet.box.run(["touch", "/run/broken"], check=True)
    fleet.let_go()
    wait_said(fleet, "trying again")
    fleet.box.wait_until(lambda: fleet.show("a", "SubState") == "auto-restart", "a failed start")
    assert fleet.steps("a") == []

    fleet.box.run(["rm", "/run/broken"], check=True)
    again(fleet)

    end = one_step(fleet)
    assert daemon(fleet) == pid
    seen(f"the same daemon; {end}")


def fill(box, directory):
    box.run(["dd", "if=/dev/zero", f"of={directory}/filler", "bs=512"])


@fault(
    "the disk of /var is full",
    made="a file system of 1 MiB on /var/lib/vllm-supervisor, filled while a start fails",
    promised="nothing can be committed, so nothing is touched; once there is room, the failure is treated",
)
def test_var_is_full(boot, seen):
    """The daemon names the file and the reason; so does `apply`, which does not half of it either."""
    fleet = Fleet(boot(tmpfs={STATE: "1M"}))
    fleet.configure({"a": {**FAILING, "executable": fleet.held()}})
    fleet.start_daemon()
    pid = daemon(fleet)
    fleet.supervisor("apply", "--no-wait")
    before = fleet.unit("a")
    fill(fleet.box, STATE)
    fleet.let_go()
    wait_said(fleet, f"cannot write to the store {STORE}: database or disk is full")
    assert fleet.unit("a") == before
    fleet.configure({"a": FAILING, "b": {**FAILING, "gpus": [1], "port": 8001}})
    refused = fleet.run("apply", "--no-wait")
    assert refused.returncode
    assert STATE in refused.stderr
    assert fleet.box.run(["test", "-e", f"{UNITS}/vllm-b.service"]).returncode == 1

    fleet.box.run(["rm", f"{STATE}/filler"], check=True)
    again(fleet)

    end = one_step(fleet)
    assert daemon(fleet) == pid
    seen(f"the daemon and apply name the file and the reason; apply wrote no unit; the same daemon; {end}")


def small_units(fleet, size="1M"):
    """Where units are is a small file system from now on."""
    keep = (
        f"cp -a {UNITS} /run/kept && mount -t tmpfs -o size={size},mode=0755 tmpfs {UNITS} && cp -a /run/kept/. {UNITS}"
    )
    fleet.box.run(["sh", "-c", f"{keep} && systemctl daemon-reload"], check=True)


@fault(
    "the disk of /etc is {how} when the daemon writes a unit",
    made="a file system of 1 MiB on /etc/systemd/system, filled or remounted read-only while a start fails",
    promised="the unit stays whole; once it can be written, the remedy is carried out, in one step",
)
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_unit_cannot_be_written(fleet, how, seen):
    """A second start at the old value meanwhile is no second step."""
    fleet.configure({"a": {**FAILING, "executable": fleet.held()}})
    small_units(fleet)
    fleet.start_daemon()
    pid = daemon(fleet)
    fleet.supervisor("apply", "--no-wait")
    fleet.box.write(f"{UNITS}/vllm-a.service.d/quick.conf", "[Service]\nRestartSec=1s\n")
    fleet.box.run(["systemctl", "daemon-reload"], check=True)
    before = fleet.unit("a")
    refuse_writes(fleet, how)
    fleet.let_go()
    reason = {"full": "No space left on device", "read-only": "Read-only file system"}[how]
    wait_said(fleet, f"cannot write {UNITS}/vllm-a.service: {reason}")
    fleet.box.wait_until(lambda: int(fleet.show("a", "NRestarts") or 0) >= 2, "a second start")
    assert fleet.unit("a") == before
    assert fleet.box.run(["sh", "-c", f"ls -A {UNITS} | grep '~$'"]).stdout == ""

    accept_writes(fleet, how)
    again(fleet)

    end = one_step(fleet)
    assert daemon(fleet) == pid
    seen(f"{reason}, with the path; nothing half-written; the same daemon; {end}")


def refuse_writes(fleet, how):
    if how == "full":
        fill(fleet.box, UNITS)
    else:
        fleet.box.run(["mount", "-o", "remount,ro", UNITS], check=True)


def accept_writes(fleet, how):
    if how == "full":
        fleet.box.run(["rm", f"{UNITS}/filler"], check=True)
    else:
        fleet.box.run(["mount", "-o", "remount,rw", UNITS], check=True)


@fault(
    "the disk of /etc is {how} when `apply` runs",
    made="a file system of 1 MiB on /etc/systemd/system, filled or remounted read-only before `apply`",
    promised="path and reason; no unit and no half of one; applied again when there is room, all is there",
)
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_apply_cannot_write(fleet, how, seen):
    """What it promised before it was refused it does the next time."""
    fleet.configure({"a": ROOMY})
    small_units(fleet)
    refuse_writes(fleet, how)
    reason = {"full": "No space left on device", "read-only": "Read-only file system"}[how]

    refused = fleet.run("apply", "--no-wait")
    assert refused.returncode == 71
    assert f"cannot write {UNITS}/vllm-a.service: {reason}" in refused.stderr
    assert fleet.box.run(["sh", "-c", f"ls -A {UNITS} | grep vllm-a"]).stdout == ""
    accept_writes(fleet, how)

    assert "to start: a" in fleet.supervisor("apply")
    assert fleet.run("plan").returncode == 0
    seen(f"exit code 71 and {reason}, with the path; no unit; then all of it")


@fault(
    "/var is read-only when the daemon starts",
    made="the file system of /var/lib/vllm-supervisor is remounted read-only while the daemon is down",
    promised="it is started again and again until it can be written; `apply` touches nothing",
)
def test_var_is_read_only(boot, seen):
    """What failed meanwhile is treated."""
    fleet = Fleet(boot(tmpfs={STATE: "1M"}))
    fleet.configure({"a": FAILING})
    fleet.supervisor("apply", "--no-wait")
    fleet.box.run(["mount", "-o", "remount,ro", STATE], check=True)
    before = fleet.unit("a")
    drop_in(fleet, "quick", "RestartSec=200ms")
    fleet.box.run(["systemctl", "daemon-reload"], check=True)
    fleet.box.run(["systemctl", "start", "--no-block", DAEMON], check=True)
    wait_said(fleet, "Read-only file system")
    refused = fleet.run("apply", "--no-wait")
    assert (refused.returncode, fleet.unit("a")) == (74, before)
    assert STORE in refused.stderr

    fleet.box.run(["mount", "-o", "remount,rw", STATE], check=True)

    seen(f"systemd and apply name the place and the reason; {one_step(fleet)}")


def stop_with_a_cap(fleet, how="stop"):
    """A service that serves at 512, learned; and the daemon is down."""
    fleet.configure({"a": FAILING})
    fleet.start_daemon()
    fleet.supervisor("apply")
    fleet.box.run(["systemctl", "kill", "--signal=KILL", DAEMON] if how == "kill" else ["true"], check=True)
    fleet.box.run(["systemctl", "stop", DAEMON], check=True)
    return fleet.show("a", "InvocationID")


GARBAGE = "dd if=/dev/urandom conv=notrunc bs=1"
DAMAGES = {
    "garbage in its header": f"{GARBAGE} count=100 of={STORE}",
    "garbage over two of its pages": f"{GARBAGE} count=8192 seek=12288 of={STORE}",
    "cut to half": f"truncate -s $(($(stat -c %s {STORE}) / 2)) {STORE}",
    "emptied": f"rm -f {STORE}-*; truncate -s 0 {STORE}",
    "a write-ahead log of garbage": f"{GARBAGE} count=20000 of={STORE}-wal",
}


@fault(
    "the store is damaged: {how}",
    made="the file is overwritten or cut while the daemon is down; then the daemon starts",
    promised="said loudly, kept aside, rebuilt; the service runs on; no learned value is lost, not by apply either",
)
@pytest.mark.parametrize("how", DAMAGES)
def test_the_store_is_damaged(fleet, how, seen):
    """What cannot be read of the file is read from the unit."""
    run = stop_with_a_cap(fleet)
    fleet.box.run(["sh", "-c", DAMAGES[how]], check=True)

    fleet.start_daemon()
    first = [said(fleet, "the store was damaged", "-p", "2"), said(fleet, "not in force", "-p", "2")]
    assert any(first)
    told = json.loads(fleet.supervisor("status", "--json"))
    fleet.supervisor("apply")

    again(fleet)
    assert len(said(fleet, "the store was damaged")) == len(first[0])
    kept = fleet.box.run(["sh", "-c", f"ls {STORE}.damaged-*Z"]).stdout.split()
    assert len(kept) == len(first[0])
    assert all(any(path in notice for notice in told["notices"]) for path in kept)
    status = fleet.status()["a"]
    assert (status["condition"], status["effective"], fleet.show("a", "InvocationID")) == ("ready", 512, run)
    assert fleet.run("plan").returncode == 0
    lost = "the service no longer in force until apply" if first[1] else "the service in force"
    where = "a copy kept, " if kept else ""
    seen(f"{where}{lost}, said at priority 2; 512 in force after apply, and the service not restarted")


@fault(
    "the store is damaged when `apply` runs",
    made="its header is overwritten while no daemon runs; then `apply`",
    promised="as with the daemon; what only looks says what to do",
)
def test_apply_finds_a_damaged_store(fleet, seen):
    """`plan` and `status` change nothing."""
    run = stop_with_a_cap(fleet)
    fleet.box.run(["sh", "-c", DAMAGES["garbage in its header"]], check=True)
    looks = [fleet.run(command) for command in ("plan", "status", "history")]
    assert [look.returncode for look in looks] == [74, 74, 74]
    assert all("`vllm-supervisor apply`" in look.stderr for look in looks)

    done = fleet.run("apply")

    assert (done.returncode, fleet.status()["a"]["effective"], fleet.show("a", "InvocationID")) == (0, 512, run)
    assert "the store was damaged" in done.stderr
    seen("plan, status and history: exit code 74 and the way out; apply: rebuilt, 512, and the service not restarted")


@fault(
    "the store is locked",
    made="another program holds sqlite's lock on it until the daemon complains, while a start fails",
    promised="the daemon waits, says so, and tries again; then the failure is treated",
)
def test_the_store_is_locked(fleet, seen):
    """Its own patience is 10 s."""
    fleet.configure({"a": {**FAILING, "executable": fleet.held()}})
    fleet.start_daemon()
    pid = daemon(fleet)
    fleet.supervisor("apply", "--no-wait")
    lock = f"d = sqlite3.connect({STORE!r}); d.execute('BEGIN IMMEDIATE'); print('held', flush=True)"
    holder = fleet.box.popen([PYTHON, "-c", f"import sqlite3, time; {lock}; time.sleep(1000)"], stdout=PIPE)
    assert holder.stdout.readline() == "held\n"
    fleet.let_go()
    wait_said(fleet, "database is locked")

    holder.kill()
    holder.wait(10)
    again(fleet)

    end = one_step(fleet)
    assert daemon(fleet) == pid
    seen(f"`database is locked`; the same daemon; {end}")


def failing_disk(calls):
    """The words before a program, or before its process, for which these calls on the store's files end in EIO."""
    paths = (word for path in (STORE, f"{STORE}-wal") for word in ("-P", path))
    return ["strace", "-qq", "-o", "/dev/null", f"--trace={calls}", f"--inject={calls}:error=EIO", *paths]


@fault(
    "the disk under the store fails: {how}",
    made="strace has these calls on the store's files end in EIO, for the daemon while a start fails, then for `apply`",
    promised="said; nothing is touched that could not be committed; once the disk answers, the failure is treated",
)
@pytest.mark.parametrize(
    ("how", "calls", "reason"),
    [
        ("writes", "pwrite64", "disk I/O error"),
        ("syncs", "fsync,fdatasync", "disk I/O error"),
        ("reads", "pread64,read", "[Errno 5] Input/output error"),
    ],
)
def test_the_disk_fails(fleet, how, calls, reason, seen):
    """For the daemon from before there is anything to commit, so that no moment matters."""
    fleet.configure({"a": FAILING})
    fleet.start_daemon()
    pid = daemon(fleet)
    tracer = fleet.box.popen([*failing_disk(calls), "-p", pid])
    fleet.box.wait_until(lambda: "TracerPid:\t0" not in fleet.box.read(f"/proc/{pid}/status"), "the faults")
    fleet.supervisor("apply", "--no-wait")
    before = fleet.unit("a")
    wait_said(fleet, "disk I/O error; trying again")
    fleet.box.wait_until(lambda: fleet.show("a", "SubState") == "auto-restart", "a failed start")
    assert fleet.unit("a") == before
    assert fleet.steps("a") == []
    fleet.configure({"a": FAILING, "b": {**FAILING, "gpus": [1], "port": 8001}})
    refused = fleet.box.run([*failing_disk(calls), SUPERVISOR, "apply", "--no-wait"])
    assert refused.returncode == 74, refused
    assert f"the store {STORE}: {reason}" in refused.stderr
    assert fleet.box.run(["test", "-e", f"{UNITS}/vllm-b.service"]).returncode == 1

    tracer.terminate()
    tracer.wait()
    again(fleet)

    end = one_step(fleet)
    assert daemon(fleet) == pid
    told = f"the daemon says `disk I/O error`, apply exit code 74 and `{reason}`, with the path"
    seen(f"{told}; apply wrote no unit; the same daemon; {end}")


@fault(
    "the store cannot be opened: {how}",
    made="its directory is removed, or its file replaced by a directory, under the running daemon",
    promised="said; what it takes a new process for is done by a new process; what was learned is in force after apply",
)
@pytest.mark.parametrize("how", ["no directory", "a directory"])
def test_the_store_is_gone(fleet, how, seen):
    """The service runs on."""
    fleet.configure({"a": FAILING})
    drop_in(fleet, "quick", "RestartSec=200ms")
    fleet.start_daemon()
    fleet.supervisor("apply")
    run, pid = fleet.show("a", "InvocationID"), daemon(fleet)
    broken = {"no directory": f"rm -r {STATE}", "a directory": f"rm {STORE}*; mkdir {STORE}"}
    fleet.box.run(["sh", "-c", broken[how]], check=True)
    fleet.box.run(["systemctl", "reload", DAEMON])  # it may end of it
    if how == "a directory":
        wait_said(fleet, f"the store {STORE}: ")
        fleet.box.run(["rmdir", STORE], check=True)
    fleet.box.wait_until(lambda: said(fleet, "not in force"), "what is lost")

    fleet.supervisor("apply")

    assert (fleet.status()["a"]["effective"], fleet.show("a", "InvocationID")) == (512, run)
    new = "a new daemon" if daemon(fleet) != pid else "the same daemon"
    seen(f"{new}; the service is named as no longer in force; after apply 512, and not restarted")


@fault(
    "journald is restarted ({when})",
    made="`systemctl restart systemd-journald` while a start fails, or `journalctl --rotate` again and again meanwhile",
    promised="no evidence is missed",
)
@pytest.mark.parametrize("when", ["while it loads", "again and again, and rotated"])
def test_journald_is_restarted(fleet, when, seen):
    """The reader is invalidated by it."""
    fleet.configure({"a": {**with_environment(FAILING, SIM_FLOOD=2000), "executable": fleet.held()}})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    if when == "while it loads":
        fleet.box.run(["systemctl", "restart", "systemd-journald"], check=True)
        fleet.let_go()
    else:
        # Its start limit is reset: a journald that is left down for good is another fault.
        restart = "systemctl reset-failed systemd-journald; systemctl restart systemd-journald"
        again_ = f"while sleep 0.3; do journalctl --rotate; {restart}; done"
        fleet.box.popen(["sh", "-c", f"timeout 8 sh -c '{again_}'"])

        fleet.let_go()

    seen(one_step(fleet))


@fault(
    "journal entries that the daemon has not read are vacuumed away",
    made="the daemon is down while a start fails and fails; `journalctl --rotate --vacuum-files=1`; then it starts",
    promised="it goes on with what is left",
)
def test_the_journal_is_vacuumed(fleet, seen):
    """The next failure is evidence enough."""
    fleet.configure({"a": FAILING})
    fleet.start_daemon()
    fleet.box.run(["systemctl", "stop", DAEMON], check=True)
    fleet.supervisor("apply", "--no-wait")
    fleet.box.wait_until(lambda: fleet.show("a", "SubState") == "auto-restart", "a failed start")
    fleet.box.run(["journalctl", "--rotate", "--vacuum-files=1"], check=True)

    fleet.start_daemon()

    seen(one_step(fleet))


@fault(
    "the journal is volatile",
    made="Storage=volatile, and a reboot after a step was taken",
    promised="as with a persistent one; what was learned outlives the reboot, though the journal does not",
)
def test_the_journal_is_volatile(boot, seen):
    """The cursor in the store is of a journal that is gone."""
    fleet = Fleet(boot(storage="volatile"))
    fleet.configure({"a": FAILING, "b": {**FAILING, "gpus": [1], "port": 8001}})
    fleet.start_daemon()
    fleet.box.run(["systemctl", "enable", DAEMON], check=True)
    fleet.supervisor("apply")
    fleet.supervisor("forget", "b")

    fleet.box.reboot()

    end = one_step(fleet)
    fleet.wait_for("b", "ready")
    assert fleet.steps("b") == [(1024, 512)]
    fleet.supervisor("apply")
    assert fleet.steps("b") == [(1024, 512), (1024, 512)]
    seen(f"{end}, and not again after the reboot; what was forgotten before is learned anew after it")


@fault(
    "there is no journal",
    made="the daemon starts while journald is down and its directories are empty; later journald is there",
    promised="it says so and is started again until there is one",
)
def test_there_is_no_journal(fleet, seen):
    """A reader that was opened then would never hear of a later one."""
    fleet.configure({"a": FAILING})
    drop_in(fleet, "quick", "RestartSec=200ms")
    fleet.supervisor("apply", "--no-wait")
    sockets = "systemd-journald.socket systemd-journald-dev-log.socket"
    fleet.box.run(
        ["sh", "-c", f"systemctl stop {sockets} systemd-journald; rm -rf /var/log/journal/* /run/log/journal"]
    )
    fleet.box.run(["systemctl", "daemon-reload"], check=True)
    fleet.box.run(["systemctl", "start", "--no-block", DAEMON], check=True)
    fleet.box.wait_until(lambda: int(daemon(fleet, "NRestarts") or 0) > 1, "a daemon that ends")
    fleet.box.wait_until(lambda: daemon(fleet, "ExecMainStatus") == "74", "its exit code")

    fleet.box.run(["systemctl", "start", *sockets.split(), "systemd-journald"], check=True)

    seen(f"exit code 74 until there is one; {one_step(fleet)}")


@fault(
    "the clock steps by hours, {direction}",
    made="libfaketime steps the clock of journald, which stamps all entries, and of nobody else, while a service loads",
    promised="the failure is treated, in one step",
)
@pytest.mark.parametrize(("direction", "before", "after"), [("back", "+0", "-5h"), ("forth", "-5h", "+0")])
def test_the_clock_steps(fleet, direction, before, after, seen):
    """Entries are found by cursor and boot, and times are measured with a clock that nobody sets."""
    faked = "/run/faketime/offset"
    fleet.box.write(faked, f"{before}\n")
    library = fleet.box.run(["sh", "-c", "ls /usr/lib/*/faketime/libfaketime.so.1"], check=True).stdout.strip()
    variables = f"LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={faked} FAKETIME_NO_CACHE=1"
    variables += " FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_DISABLE_SHM=1"
    fleet.box.write(f"{UNITS}/systemd-journald.service.d/faketime.conf", f"[Service]\nEnvironment={variables}\n")
    fleet.box.run(["systemctl", "daemon-reload"], check=True)
    fleet.box.run(["systemctl", "restart", "systemd-journald"], check=True)
    fleet.configure({"a": {**FAILING, "executable": fleet.held()}})
    start_once(fleet)
    fleet.box.wait_until(lambda: fleet.show("a", "SubState") == "start-post", "loading")

    fleet.box.write(faked, f"{after}\n")
    fleet.let_go()
    wait_failed(fleet)
    fleet.start_daemon()  # it looks for the beginning of the run

    end = one_step(fleet)
    stamps = [int(entry["__REALTIME_TIMESTAMP"]) for entry in fleet.box.journal("-u", "vllm-a")]
    assert max(stamps) - min(stamps) > 4 * 3600e6
    seen(end)


@fault(
    "D-Bus is down",
    made="dbus.socket and dbus.service are stopped before a service is applied that does not fit",
    promised="systemctl talks to PID 1 itself, so all goes on; only the flags cannot be asked for, and `apply` says so",
)
def test_dbus_is_down(fleet, seen):
    """The daemon starts and treats without it."""
    fleet.configure({"a": FAILING})
    fleet.box.run(["systemctl", "stop", "dbus.socket", "dbus.service"], check=True)
    fleet.start_daemon()

    done = fleet.run("apply")

    assert (done.returncode, "its arguments were not checked" in done.stderr) == (0, True), done
    seen(f"apply notes what it did not check; {one_step(fleet)}")


@fault(
    "the daemon is stopped (SIGSTOP)",
    made="SIGSTOP while a start is under way that fails, with WatchdogSec=2s",
    promised="the watchdog has it started anew, and it takes up what was begun",
)
def test_the_daemon_is_stopped(fleet, seen):
    """With the unit as it is shipped that is after 3 min, 5 s for the signal, and 5 s."""
    drop_in(fleet, "quick", "WatchdogSec=2s\nRestartSec=200ms\nTimeoutAbortSec=500ms")
    fleet.configure({"a": {**FAILING, "executable": fleet.held()}})
    fleet.start_daemon()
    pid = daemon(fleet)
    fleet.supervisor("apply", "--no-wait")
    fleet.box.wait_until(lambda: fleet.show("a", "SubState") == "start-post", "loading")
    fleet.box.run(["systemctl", "kill", "--kill-who=main", "--signal=STOP", DAEMON], check=True)
    fleet.let_go()

    end = one_step(fleet)
    assert daemon(fleet) != pid
    assert said(fleet, "Watchdog timeout")
    seen(f"a new daemon; {end}")


@fault(
    "the daemon runs out of file descriptors",
    made="the daemon's limit is lowered to what it has open (prlimit), while a service loads",
    promised="it says so at priority 2, ends, and is started anew",
)
def test_no_descriptor_is_left(fleet, seen):
    """To try again every ten seconds would be for ever."""
    drop_in(fleet, "quick", "RestartSec=200ms")
    fleet.configure({"a": {**FAILING, "executable": fleet.held()}})
    fleet.start_daemon()
    pid = daemon(fleet)
    fleet.supervisor("apply", "--no-wait")
    fleet.box.run(["prlimit", f"--pid={pid}", "--nofile=3:16384"], check=True)
    fleet.let_go()

    end = one_step(fleet)
    assert daemon(fleet) != pid
    assert said(fleet, "no file descriptor is left", "-p", "2")
    seen(f"said; a new daemon; {end}")


FLOOD = """#!{python}
import fcntl, os, socket, struct, sys
line = b"ERROR " + b"x" * 1_000_000 + b"\\n"
for _ in range(250):
    os.write(1, line)
journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
journal.connect("/run/systemd/journal/socket")
for _ in range(4):
    text = os.urandom(8 << 20).replace(b"\\n", b" ")
    memory = os.memfd_create("entry", os.MFD_ALLOW_SEALING)
    os.write(memory, b"MESSAGE=ERROR " + text + b"\\nOTHER=" + text + b"\\n")
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, 15)  # against every change, as journald wants it
    journal.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", memory))])
os.execv("{vllm}", ["{vllm}", *sys.argv[1:]])
"""


@fault(
    "a service logs megabytes at a time",
    made="250 lines of 1 MB and 4 entries of 16 MiB before a start fails; a quarter of MemoryMax= as LimitDATA=",
    promised="the daemon stays below its limit; the failure is treated",
)
def test_a_service_logs_megabytes(fleet, seen):
    """There is no memory controller in here: LimitDATA= bounds the same private memory."""
    most_mib = int((CLONE / "units" / DAEMON).read_text().partition("\nMemoryMax=")[2].partition("M\n")[0])
    drop_in(fleet, "limit", f"LimitDATA={most_mib // 4}M")
    fleet.box.write("/opt/vllm/bin/loud", FLOOD.format(python=PYTHON, vllm=VLLM), mode=0o755)
    fleet.configure({"a": {**FAILING, "executable": "/opt/vllm/bin/loud"}})
    start_once(fleet)
    wait_failed(fleet)
    fleet.start_daemon()  # all of it is there, to be read at once
    pid = daemon(fleet)

    end = one_step(fleet)
    assert daemon(fleet) == pid
    seen(f"the same daemon, within a quarter of MemoryMax={most_mib}M; {end}")
