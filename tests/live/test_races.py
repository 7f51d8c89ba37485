"""What operators, crashes and strangers do at the wrong moment, on a real systemd."""

from __future__ import annotations

import re
from subprocess import PIPE

import pytest

from tests.faults import fault
from tests.live.fleet import DAEMON, GO, VLLM, Fleet
from tests.live.points import DIES, ENDS, HANGS, OWN, SENTENCE, Points, script
from tests.live.test_recovery import SINGLE, with_environment
from tests.sandbox import LIMIT_S, PYTHON, SUPERVISOR


@pytest.fixture
def fleet(box):
    return Fleet(box)


def rows(fleet, kind, name="a"):
    return [row for row in fleet.history(name) if row["kind"] == kind]


def test_another_server_on_the_port_is_not_ours(fleet):
    """It answers while ours still loads: that is no reason to call ours ready, which is about to die of it."""
    server = (
        "import http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "  def do_GET(self): self.send_response(200 if self.path == '/health' else 404); self.end_headers()\n"
        "h.HTTPServer(('', 8000), H).serve_forever()"
    )
    fleet.box.run(["systemd-run", "--unit=other", "python3", "-c", server], check=True)
    fleet.box.wait_until(lambda: fleet.box.run(["curl", "-sf", "http://127.0.0.1:8000/health"]).returncode == 0, "it")
    fleet.configure({"a": {**SINGLE, "executable": script(fleet, f'sleep 2\nexec {VLLM} "$@"')}})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")

    fleet.box.wait_until(lambda: rows(fleet, "reported") + rows(fleet, "waiting"), "a word on the failure")

    assert rows(fleet, "ready") == []


def daemon_pid(fleet):
    return fleet.box.run(["systemctl", "show", DAEMON, "--value", "-p", "MainPID"]).stdout.strip()


def said_by_the_daemon(fleet, text):
    return any(text in str(entry["MESSAGE"]) for entry in fleet.box.journal("-u", DAEMON))


LOCK = "/run/vllm-supervisor/lock"


def test_who_holds_the_lock_holds_up_one_remedy_and_nothing_else(fleet):
    """Other services are followed meanwhile; and what became of the unit is looked at again before it is written."""
    failing = {**SINGLE, "executable": fleet.held()}
    ready = with_environment(failing, SIM_OUTSIDE_GIB=0.6)
    fleet.configure({"a": failing, "b": {**ready, "gpus": [1], "port": 8001}})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    holder = fleet.box.popen(["flock", "--close", LOCK, "sh", "-c", "echo held; exec sleep 1000"], stdout=PIPE)
    assert holder.stdout.readline() == "held\n"
    fleet.let_go()
    fleet.box.wait_until(lambda: rows(fleet, "ready", "b"), "b ready in the history")
    fleet.box.wait_until(lambda: fleet.steps("a") == [(1024, 512)], "a lowered")
    own = "[Service]\nExecStart=/bin/sleep infinity\n"
    fleet.box.write("/etc/systemd/system/vllm-a.service", own)

    holder.kill()
    holder.wait(10)

    assert "not written by us" in fleet.box.wait_until(lambda: rows(fleet, "left-alone"), "a left alone")[0]["why"]
    assert fleet.unit("a") == own


def with_slow(fleet, program, text):
    """An environment in which a program waits, as a script says, before it does what it always does."""
    real = fleet.box.run(["sh", "-c", f"command -v {program}"]).stdout.strip()
    fleet.box.write(f"/opt/slow/{program}", f'#!/bin/sh\n{text}\nexec {real} "$@"\n', mode=0o755)
    return {"PATH": f"/opt/slow:{SUPERVISOR.rpartition('/')[0]}:/usr/bin:/bin:/usr/sbin:/sbin"}


def test_a_service_is_removed_in_the_middle_of_its_remedy(fleet):
    """It fails while `apply` stops it: the daemon finds it gone, and goes on."""
    other = {**with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6), "gpus": [1], "port": 8001}
    fleet.configure({"a": {**SINGLE, "executable": fleet.held()}, "b": other})
    fleet.start_daemon()
    pid = daemon_pid(fleet)
    fleet.supervisor("apply", "--no-wait")
    fleet.configure({"b": other})
    slow = with_slow(fleet, "systemctl", 'case "$1" in kill) exit 0;; stop) touch /run/stopping; sleep 5;; esac')

    removing = fleet.box.popen([SUPERVISOR, "apply", "--no-wait"], env=slow, stderr=PIPE)
    fleet.box.wait_until(lambda: fleet.box.run(["test", "-e", "/run/stopping"]).returncode == 0, "the stop")
    fleet.let_go()

    error = removing.communicate(timeout=LIMIT_S)[1]
    assert removing.returncode == 0, error
    fleet.wait_for("b", "ready")
    assert list(fleet.status()) == ["b"]
    assert daemon_pid(fleet) == pid


def test_a_remedy_is_decided_while_apply_works(fleet):
    """The plan is older than the decision: the unit is written with what was learned, not with what was planned."""
    service = {**with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4), "executable": fleet.held()}
    fleet.configure({"a": service})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    fleet.configure({"a": {**service, "start_timeout": 1800}})
    wait = f"touch {GO}; until {SUPERVISOR} history a | grep -q lowered; do sleep 0.1; done; sleep 0.5"

    fleet.box.run([SUPERVISOR, "apply", "--no-wait"], env=with_slow(fleet, "systemd-analyze", wait), check=True)

    fleet.wait_for("a", "ready")
    assert fleet.steps("a") == [(1024, 512)]
    assert "--max-num-seqs 512" in fleet.unit("a")
    assert fleet.run("plan").returncode == 0


def test_a_service_that_became_ready_without_the_daemon(fleet):
    """The daemon was down at that moment: the history tells of it all the same, once."""
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6)})
    fleet.supervisor("apply")

    fleet.start_daemon()
    fleet.box.run(["systemctl", "reload", DAEMON], check=True)

    assert len(rows(fleet, "ready")) == 1


def test_a_failure_from_before_the_last_apply_is_found(fleet):
    """Another service was added since, and the first start of the daemon is the first to look at all."""
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4)})
    fleet.box.write("/etc/systemd/system/vllm-a.service.d/once.conf", "[Service]\nRestart=no\n")
    fleet.supervisor("apply", "--no-wait")
    fleet.box.wait_until(lambda: fleet.show("a", "ActiveState") == "failed", "a failed start")
    other = {**with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6), "gpus": [1], "port": 8001}
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4), "b": other})
    fleet.supervisor("apply", "--no-wait")

    fleet.start_daemon()

    fleet.wait_for("a", "ready")
    assert fleet.steps("a") == [(1024, 512)]


def test_a_cursor_that_was_vacuumed_away(box):
    """Reading goes on with the first entry that is left after its place, not with the second."""
    box.run(["systemd-cat", "--identifier=here", "echo", "one"], check=True)
    script = (
        "import subprocess, sys; from vllm_supervisor.host.journal import Journal\n"
        "def opened():\n"
        "    journal = Journal(); journal.match([['SYSLOG_IDENTIFIER=here']]); return journal\n"
        "journal = opened(); journal.seek_realtime(0); journal.read(9); cursor = journal.cursor(); journal.close()\n"
        "for command in sys.argv[1:]: subprocess.run(['sh', '-c', command], check=True, capture_output=True)\n"
        "journal = opened(); journal.seek_cursor(cursor); print(*(e['MESSAGE'] for e in journal.read(9)[0]))\n"
    )
    box.run(["journalctl", "--sync"], check=True)
    say = "printf 'two\\nthree\\n' | systemd-cat --identifier=here; sleep 0.1; journalctl --sync"

    vacuumed = box.run([PYTHON, "-c", script, "journalctl --rotate; journalctl --vacuum-files=1", say])
    kept = box.run([PYTHON, "-c", script, "echo four | systemd-cat --identifier=here; sleep 0.1; journalctl --sync"])

    assert vacuumed.stdout.split() == ["two", "three"], vacuumed
    assert kept.stdout.split() == ["four"], kept


def test_the_end_of_a_journal_that_holds_nothing_of_ours(box):
    """What is written later is read, though no entry matched when the end was looked for."""
    script = (
        "import subprocess; from vllm_supervisor.host.journal import Journal\n"
        "journal = Journal(); journal.match([['SYSLOG_IDENTIFIER=here']]); journal.seek_end()\n"
        "before = journal.read(9)[0]\n"
        "say = 'seq 2 | systemd-cat --identifier=here; sleep 0.1; journalctl --sync'\n"
        "subprocess.run(['sh', '-c', say], check=True, capture_output=True)\n"
        "again = Journal(); again.match([['SYSLOG_IDENTIFIER=here']]); again.seek_end()\n"
        "print(len(before), *(e['MESSAGE'] for e in journal.read(9)[0]), len(again.read(9)[0]))\n"
    )

    assert box.run([PYTHON, "-c", script]).stdout.split() == ["0", "1", "2", "0"]


def test_a_stop_by_hand_of_a_start_that_had_failed(fleet):
    """It had printed the sentence, hung, and was stopped, all while no daemon was there: systemd calls it failed."""
    program = f"trap 'exit 1' TERM\ncat >&2 <<'E'\n{SENTENCE}\nE\nsleep 60 &\nwait"
    fleet.configure({"a": {**SINGLE, "executable": script(fleet, program)}})
    fleet.supervisor("apply", "--no-wait")
    fleet.box.wait_until(lambda: fleet.box.journal("-u", "vllm-a", "--grep=CUDA out of memory"), "the sentence")
    fleet.box.run(["systemctl", "stop", "vllm-a"], check=True)
    invocation = fleet.show("a", "InvocationID")

    fleet.start_daemon()
    fleet.box.wait_until(lambda: rows(fleet, "left-alone") + rows(fleet, "started-again"), "the end of it")

    assert rows(fleet, "started-again") == []
    assert fleet.show("a", "InvocationID") == invocation
    assert "--max-num-seqs 512" in fleet.unit("a")


def test_a_unit_file_was_removed_by_hand_and_its_service_from_the_yaml(fleet):
    """It still runs, and nothing on the disk tells of it any more: apply stops it and takes it out of force."""
    roomy = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6)
    b = {**roomy, "gpus": [1], "port": 8001}
    fleet.configure({"a": roomy, "b": b, "c": {**roomy, "gpus": [2], "port": 8002}})
    fleet.supervisor("apply")
    fleet.box.run(["systemctl", "stop", "vllm-c"], check=True)
    fleet.box.run(["rm", "/etc/systemd/system/vllm-a.service", "/etc/systemd/system/vllm-c.service"], check=True)
    fleet.box.run(["systemctl", "daemon-reload"], check=True)
    assert fleet.show("a", "ActiveState") == "active"

    fleet.configure({"b": b})
    # Between the stop that is queued and the one that is waited for, systemd may have forgotten the unit.
    forgotten = "/usr/bin/systemctl show vllm-a -p ActiveState | grep -q inactive"
    slow = with_slow(fleet, "systemctl", f'[ "$1 $2" = "stop --" ] && until {forgotten}; do sleep 0.05; done')
    done = fleet.box.run([SUPERVISOR, "apply"], env=slow, check=True)

    assert "2 to remove" in done.stdout
    assert fleet.show("a", "ActiveState") == "inactive"
    assert list(fleet.status()) == ["b"]
    assert "nothing to do" in fleet.supervisor("apply")


def test_settings_that_do_not_stand_in_the_unit(fleet):
    """Another floor is put in force without a restart, and the daemon goes by it."""
    service = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6)
    fleet.configure({"a": service})
    fleet.supervisor("apply")
    before = (fleet.unit("a"), fleet.show("a", "InvocationID"))

    fleet.configure({"a": {**service, "remediation": {"max_attempts": 3}}})
    assert fleet.run("plan").returncode == 3
    fleet.supervisor("apply")

    assert fleet.status()["a"]["max_attempts"] == 3
    assert (fleet.unit("a"), fleet.show("a", "InvocationID")) == before
    assert fleet.run("plan").returncode == 0


def test_the_store_is_removed_under_the_daemon(fleet):
    """It does not go on with a file that nobody sees; apply puts everything in force again and restarts nothing."""
    roomy = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6)
    fleet.configure({"a": roomy})
    fleet.start_daemon()
    fleet.supervisor("apply")
    invocation = fleet.show("a", "InvocationID")
    fleet.box.run(["sh", "-c", "rm /var/lib/vllm-supervisor/store.sqlite*"], check=True)

    fleet.configure({"a": roomy, "b": {**roomy, "gpus": [1], "port": 8001}})
    fleet.supervisor("apply", "--no-wait")

    fleet.box.wait_until(lambda: rows(fleet, "ready", "b"), "what the daemon saw")
    assert list(fleet.status()) == ["a", "b"]
    assert fleet.show("a", "InvocationID") == invocation


def test_the_daemon_is_not_told_of_a_new_service(fleet):
    """It was starting when `apply` would have told it, say: it finds out by itself."""
    fleet.start_daemon()
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4)})
    deaf = with_slow(fleet, "systemctl", '[ "$1 $3" = "kill --signal=SIGHUP" ] && exit 1')

    fleet.box.run([SUPERVISOR, "apply", "--no-wait"], env=deaf, check=True)

    fleet.wait_for("a", "ready")
    assert fleet.steps("a") == [(1024, 512)]


def test_a_program_that_is_not_executable(fleet):
    """It is "Permission denied" to root too; becoming root is no cure."""
    fleet.configure({"a": SINGLE})
    fleet.box.run(["chmod", "644", VLLM], check=True)

    done = fleet.run("apply")

    assert done.returncode == 71
    assert "nothing was written" in done.stderr
    assert "as root" not in done.stderr


STAYS_DOWN = {
    "stopped": ("systemctl stop $unit", DIES),
    "stopped (a start that hangs)": ("systemctl stop $unit", HANGS),
    "disabled": ("systemctl disable --now $unit", DIES),
    "masked": ("ln -sf /dev/null $file; systemctl daemon-reload; systemctl stop $unit", HANGS),
    "deleted": ("rm $file; systemctl stop $unit; systemctl daemon-reload", DIES),
}


@pytest.mark.parametrize("act", STAYS_DOWN)
@fault(
    "a unit is {act} by hand at every point of its recovery",
    made="before each call that the daemon makes of `systemctl`, at a service of its own",
    promised="it stays down; one row of history says whose hand it was",
)
def test_it_stays_down_whenever_it_is(fleet, seen, act):
    """No point is too late, not even the one right before the job that starts it again."""
    done_by_hand, end = STAYS_DOWN[act]
    points = Points(fleet, done_by_hand.replace("systemctl", "/usr/bin/systemctl"), end=end)
    told = points.rows()

    states = {name: fleet.show(name, "ActiveState") for name in points.reached}
    assert set(states.values()) <= {"inactive", "failed"}, (states, fleet.log())
    for name in points.reached:
        ends = [row["why"] for row in told[name] if row["kind"] in ENDS]
        assert len(ends) == 1, (name, ends)
        assert all(row["kind"] != "down" for row in told[name]), told[name]
        # Once it has been started again, it is that start that is stopped.
        assert re.match(r"somebody |.* is gone: |.* was replaced by |.* is started again", ends[0]), (name, ends)
    steps = max(len(lowered(told[name])) for name in points.reached)
    seen(f"at every point: down, with {len(ends)} row and {steps} step at the most")


def lowered(rows):
    """The lowerings among some rows."""
    return [f"{row['tried']} to {row['to']}" for row in rows if row["kind"] == "lowered"]


COMES_UP = {
    "restarted": ("systemctl restart --no-block $unit", HANGS),
    "reset": ("systemctl reset-failed $unit", DIES),
    "edited": (
        "mkdir -p $file.d; printf '[Service]\\nCPUWeight=7\\n' >$file.d/own.conf; systemctl daemon-reload",
        DIES,
    ),
}


@pytest.mark.parametrize("act", COMES_UP)
@fault(
    "a unit is {act} by hand at every point of its recovery",
    made="before each call that the daemon makes of `systemctl`, at a service of its own",
    promised="it ends ready at the learned value, after one step; what was edited is kept",
)
def test_it_comes_up_whatever_is_done(fleet, seen, act):
    """Restarts of several hands end in one service that is ready."""
    done_by_hand, end = COMES_UP[act]
    points = Points(fleet, done_by_hand.replace("systemctl", "/usr/bin/systemctl"), end=end, until=["ready"])
    told, status = points.rows(), fleet.status()

    found = {(status[name]["condition"], status[name]["effective"], *lowered(told[name])) for name in points.names}
    assert all(fleet.show(name, "CPUWeight") == "7" for name in points.reached if act == "edited")
    assert len(found) == 1, (found, fleet.log())
    condition, value, *steps = found.pop()
    seen(f"at every point: {condition} at {value}, {len(steps)} step: {', '.join(steps)}")


@fault(
    "`apply` is run twice at once, for one change",
    made="the first is held while it has the lock, until the second has planned and waits",
    promised="the second says for whom it waits and finds nothing to do; one restart",
)
def test_two_applies_for_one_change(fleet, seen):
    """What the first had promised when the second looked was done when it got the lock."""
    service = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6, SIM_START_S=0.2)
    fleet.configure({"a": service})
    fleet.supervisor("apply")
    fleet.configure({"a": {**service, "environment": {**service["environment"], "SIM_SHARDS": 2}}})
    go = "/run/go"
    slow = with_slow(fleet, "systemctl", f'[ "$1" = enable ] && until [ -e {go} ]; do sleep 0.05; done')
    before = len(starts(fleet, "a"))

    first = fleet.box.popen([SUPERVISOR, "apply", "--no-wait"], env=slow, stdout=PIPE, stderr=PIPE)
    fleet.box.wait_until(lambda: fleet.box.read(LOCK), "the first at work")
    second = fleet.box.popen([SUPERVISOR, "apply", "--no-wait"], stdout=PIPE, stderr=PIPE)
    waiting = second.stderr.readline()
    fleet.box.run(["touch", go], check=True)
    ended = [(process.communicate(timeout=LIMIT_S)[0], process.returncode) for process in (first, second)]

    assert [code for _, code in ended] == [0, 0], ended
    assert re.fullmatch(r"waiting for vllm-supervisor apply --no-wait \(PID \d+\), which is changing units\n", waiting)
    assert "to restart: a" in ended[0][0]
    assert "nothing to do" in ended[1][0]
    fleet.wait_for("a", "ready")
    seen(f"both end with 0; the second names the first; {len(starts(fleet, 'a')) - before} restart")


def starts(fleet, name):
    """When each start of a unit began, microseconds since the epoch."""
    entries = fleet.box.journal(f"UNIT=vllm-{name}.service", "MESSAGE_ID=7d4958e842da4a758f6c1cdc7b36dcc5")
    return [int(entry["__REALTIME_TIMESTAMP"]) for entry in entries]


@fault(
    "`apply` waits for a service to stop while another fails",
    made="the service that is removed takes a minute to end",
    promised="the other is remedied meanwhile; the unit file is gone once the service has ended",
)
def test_the_lock_is_free_while_a_removed_service_stops(fleet, seen):
    """A stop may take minutes, and they are no other service's minutes."""
    stubborn = script(fleet, f"(trap '' TERM; exec sleep 1000) &\nexec {VLLM} \"$@\"")
    roomy = {**with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6, SIM_START_S=0.2), "executable": stubborn}
    fleet.box.write("/etc/systemd/system/vllm-a.service.d/long.conf", "[Service]\nTimeoutStopSec=1000\n")
    fleet.configure({"a": roomy})
    fleet.start_daemon()
    fleet.supervisor("apply")
    failing = {
        **with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4, SIM_START_S=0.2),
        "gpus": [1],
        "port": 8001,
        "executable": fleet.held(),
    }
    fleet.configure({"a": roomy, "b": failing})
    fleet.supervisor("apply", "--no-wait")
    fleet.configure({"b": failing})
    removing = fleet.box.popen([SUPERVISOR, "apply", "--no-wait"], stdout=PIPE, stderr=PIPE)
    assert "waiting for vllm-a.service to stop" in removing.stderr.readline()
    fleet.let_go()

    fleet.wait_for("b", "ready")

    still = fleet.show("a", "ActiveState"), fleet.box.run(["ls", "/etc/systemd/system/vllm-a.service"]).returncode
    assert still == ("deactivating", 0)
    fleet.box.run(["systemctl", "kill", "--signal=KILL", "vllm-a"], check=True)
    assert removing.communicate(timeout=LIMIT_S)[0] == "1 to remove, 1 unchanged\n"
    assert fleet.box.run(["ls", "/etc/systemd/system/vllm-a.service"]).returncode != 0
    (tried, to), *more = fleet.steps("b")
    seen(f"the other: {1 + len(more)} step, {tried} to {to}, ready before the first had ended")


@pytest.mark.parametrize("which", ["odd", "even"])
@fault(
    "`apply` at the {which} points of a recovery",
    made="with another start timeout, before each second call that the daemon makes of `systemctl`",
    promised="both hands end in one start at the learned value",
)
def test_apply_at_every_second_point(fleet, seen, which):
    """It goes on while the daemon waits, or waits for the lock that the daemon has."""
    # The daemon is held until the other is done, or for as long as it waits for the lock that the daemon has.
    done = "/run/vllm-supervisor/$name.applied"
    act = (
        f"[ $((${{name#s}} % 2)) = {int(which == 'odd')} ] || return 0\n"
        f"/usr/bin/systemd-run --quiet --collect sh -c '{SUPERVISOR} apply --no-wait --config '{OWN}'; touch '{done}\n"
        f"for i in $(seq 100); do\n    [ -e {done} ] && break\n"
        f"    [ $i -gt 20 ] && grep -q ' run ' {LOCK} && break\n    sleep 0.05\ndone"
    )
    # One that is decided on between the plan of `apply` and its promise is started by `apply`, and that is no remedy.
    points = Points(fleet, act, until=["ready"], start_timeout=2000)
    told, status = points.rows(), fleet.status()

    acted = [name for name in points.reached if int(name[1:]) % 2 == int(which == "odd")]
    applied = {name: len([row for row in told[name] if row["kind"] == "applied"]) for name in acted}
    assert set(applied.values()) == {2}, (applied, fleet.log())
    found = {(status[name]["condition"], status[name]["effective"], *lowered(told[name])) for name in points.names}
    assert len(found) == 1, (found, fleet.log())
    most = max(len(starts(fleet, name)) for name in acted)
    condition, value, *steps = found.pop()
    seen(f"at each of them: {condition} at {value}, {len(steps)} step: {', '.join(steps)}; {most} starts at the most")


@fault(
    "an error line arrives in the moment the service becomes ready",
    made="the sentence is printed 0 to 1 s after the server first answers, at a service each",
    promised="before ready it is evidence, after it is none; the service ends ready, after one step at the most",
)
def test_an_error_line_in_the_moment_of_ready(fleet, seen):
    said = SENTENCE.replace("'", "")
    for tenths in range(0, 11, 2):
        late = f"until curl -sf http://127.0.0.1:80{tenths:02}/health; do sleep 0.02; done; sleep {tenths / 10}"
        once = (
            f'case "$*" in *"--max-num-seqs 512"*) ;; *) ({late}; echo "{said}" >&2; : >/run/said/{tenths}) & ;; esac'
        )
        fleet.box.write(f"/opt/vllm/bin/late{tenths}", f'#!/bin/sh\n{once}\nexec {VLLM} "$@"\n', mode=0o755)
    fleet.box.run(["install", "-d", "--mode=1777", "/run/said"], check=True)
    roomy = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6, SIM_START_S=0.3)
    numbers = range(0, 11, 2)
    names = {f"s{n}": {**roomy, "executable": f"/opt/vllm/bin/late{n}", "gpus": [n], "port": 8000 + n} for n in numbers}
    fleet.configure(names)
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    fleet.box.wait_until(
        lambda: all(fleet.box.run(["test", "-e", f"/run/said/{n}"]).returncode == 0 for n in numbers),
        "all said",
    )

    for name in names:
        fleet.wait_for(name, "ready")
        fleet.box.wait_until(lambda name=name: rows(fleet, "ready", name), "ready in the history")
        steps = fleet.steps(name)
        assert steps in ([], [(1024, 512)])
        assert fleet.status()[name]["effective"] == (512 if steps else None), name
    seen("each ends ready: as it was, or at 512 after 1 step, 1024 to 512")


@fault(
    "the configuration is deleted under the daemon",
    made="/etc/vllm-supervisor is removed while a start fails",
    promised="what is in force stays so, and failures are treated; `apply` touches nothing and says what is missing",
)
def test_the_configuration_is_deleted_under_the_daemon(fleet, seen):
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4, SIM_START_S=1)})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    fleet.box.run(["rm", "-r", "/etc/vllm-supervisor"], check=True)

    fleet.wait_for("a", "ready")
    before = (fleet.unit("a"), fleet.show("a", "InvocationID"))
    done = fleet.run("apply")

    assert done.returncode == 78
    assert "/etc/vllm-supervisor" in done.stderr
    assert fleet.steps("a") == [(1024, 512)]
    assert (fleet.unit("a"), fleet.show("a", "InvocationID")) == before
    seen(f"1 step, 1024 to 512, and ready; apply: exit code {done.returncode}, and the unit runs on")
