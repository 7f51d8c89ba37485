"""People without root: what the group vllm-operators may do, what it may not, and what a pause does."""

from __future__ import annotations

import json
import re

import pytest

from tests.faults import fault
from tests.live.fleet import DAEMON, VLLM, Fleet
from tests.live.test_races import said_by_the_daemon, script, with_slow
from tests.live.test_recovery import SINGLE, with_environment
from tests.sandbox import CLONE, PYTHON, SUPERVISOR, Sandbox, obstacle
from vllm_supervisor.judgement import VOICE

SOCKET = "vllm-supervisor-control.socket"
PROCESS = "vllm-supervisor-control@.service"
CONTROL = "/run/vllm-supervisor/control"
FITS = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6)
HALF_FITS = with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4)
SLEEPER = "[Service]\nExecStart=/bin/sleep infinity\nExecReload=/bin/true\n[Install]\nWantedBy=multi-user.target\n"


def shell_lines(page):
    """The first block of shell commands on a page of the documentation that installs a file of ours."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (CLONE / page).read_text(), re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if "share/vllm-supervisor/units" in block)


def lay_out(box):
    """What the wheel brings along, where `pip install` puts it."""
    for path in (CLONE / "units").iterdir():
        box.write(f"/opt/vllm-supervisor/share/vllm-supervisor/units/{path.name}", path.read_text())


def install(box):
    """The part for operators, by the lines of its page; alice is in the group, bob is not."""
    lay_out(box)
    box.run(["sh", "-euc", shell_lines("docs/operators.md")], check=True)
    box.run(["useradd", "alice"], check=True)
    box.run(["usermod", "--append", "--groups", "vllm-operators", "alice"], check=True)
    box.run(["useradd", "bob"], check=True)


@pytest.fixture
def fleet(box):
    install(box)
    return Fleet(box)


@pytest.fixture(scope="module")
def sleeper():
    """Units that only sleep, one of them with the right name. One machine for all tests that change nothing on it."""
    if reason := obstacle():
        pytest.skip(reason)
    with Sandbox() as box:
        install(box)
        for unit in ("vllm-a.service", "other.service", DAEMON):
            box.write(f"/etc/systemd/system/{unit}", SLEEPER)
        box.run(["systemctl", "daemon-reload"], check=True)
        box.run(["systemctl", "start", "vllm-a", DAEMON], check=True)
        yield box


def rows(fleet, kind, name="a"):
    return [row for row in fleet.history(name) if row["kind"] == kind]


def as_user(box, user, *arguments):
    return box.run([SUPERVISOR, *arguments], user=user)


def pid(box, unit=DAEMON):
    return box.run(["systemctl", "show", unit, "--value", "-p", "MainPID"]).stdout.strip()


def test_a_member_of_the_group(fleet):
    """Sees everything, pauses and goes on, starts and stops, all as root would; and stands in the history."""
    fleet.configure({"a": FITS})
    fleet.start_daemon()
    fleet.supervisor("apply")
    assert fleet.box.run(["stat", "-c", "%a %U", "/var/lib/vllm-supervisor/store.sqlite"]).stdout == "600 root\n"

    for arguments in (["status", "a"], ["history", "--json"], ["explain", "a"]):
        member, root = as_user(fleet.box, "alice", *arguments), fleet.run(*arguments)
        assert (member.returncode, member.stdout, member.stderr) == (0, root.stdout, root.stderr)
    assert as_user(fleet.box, "alice", "pause", "a").returncode == 0
    assert fleet.status()["a"]["paused"]["by"] == "alice"
    assert as_user(fleet.box, "alice", "resume", "a").returncode == 0
    assert [row["why"].split(",")[0] for row in fleet.history("a")[-2:]] == ["by alice", "by alice"]
    assert as_user(fleet.box, "alice", "explain", "b").returncode == 78
    for verb in ("stop", "start", "restart", "reset-failed"):
        fleet.box.run(["systemctl", "--no-ask-password", verb, "vllm-a"], user="alice", check=True)
    assert fleet.show("a", "ActiveState") == "active"


@fault(
    "a user outside the group tries the same",
    made="`status`, `history`, `explain`, `pause`, `resume`, and `systemctl` start, stop, restart, reset-failed",
    promised="each is refused, with whom to ask for it; nothing changes",
)
def test_a_user_outside_of_the_group(sleeper, seen):
    before = pid(sleeper, "vllm-a")
    told = [
        as_user(sleeper, "bob", *arguments)
        for arguments in (["status"], ["history"], ["explain", "a"], ["pause", "a"], ["resume", "--all"])
    ]
    verbs = ("start", "stop", "restart", "reset-failed")
    refused = [sleeper.run(["systemctl", "--no-ask-password", verb, "vllm-a"], user="bob") for verb in verbs]

    assert {done.returncode for done in told} == {77}
    assert all("ask to be added to the group vllm-operators" in done.stderr for done in told)
    assert all("nteractive authentication" in done.stderr for done in refused)
    assert pid(sleeper, "vllm-a") == before
    seen(f"{len(told)} commands end with exit code 77 and name the group; polkit refuses {len(refused)} verbs of 4")


# The first that is found; newer versions of systemd begin the first with the words of the second.
REFUSALS = {
    "nteractive authentication": "polkit",
    "Access denied": "D-Bus",
    "may not be isolated": "systemd",
    "unprivileged user": "vllm-supervisor",
}


@pytest.mark.parametrize(
    "attempt",
    [
        f"systemctl stop {DAEMON}",
        f"systemctl restart {DAEMON}",
        f"systemctl stop {SOCKET}",
        "systemctl start other",
        "systemctl reset-failed",
        "systemctl reload vllm-a",
        "systemctl kill vllm-a",
        "systemctl set-property --runtime vllm-a CPUWeight=5",
        "systemctl freeze vllm-a",
        "systemctl clean vllm-a",
        "systemctl isolate vllm-a.service",
        "systemctl cancel",
        "systemctl enable vllm-a",
        "systemctl disable vllm-a",
        "systemctl mask --runtime vllm-a",
        "systemctl daemon-reload",
        "systemctl set-environment LD_PRELOAD=/tmp/x",
        "systemd-run --unit=vllm-x true",
        "systemd-run --scope --unit=vllm-x true",
        "vllm-supervisor apply",
        "vllm-supervisor forget a",
    ],
)
@fault(
    "a member of the group tries `{attempt}`",
    made="as a user in vllm-operators, without root",
    promised="refused: the group is for start, stop, restart and reset-failed of vllm-* services",
)
def test_what_the_group_is_not_for(sleeper, attempt, seen):
    program, *arguments = attempt.split()
    asked = [] if program == "vllm-supervisor" else ["--no-ask-password"]

    def look():
        units = ["vllm-a.service", DAEMON, SOCKET, "other.service", "vllm-x.service", "vllm-x.scope"]
        properties = "MainPID,ActiveState,LoadState,UnitFileState,CPUWeight,FreezerState,InvocationID"
        manager = sleeper.run(["systemctl", "show", "-p", "Environment,UnitsLoadTimestamp"]).stdout
        return sleeper.run(["systemctl", "show", "-p", properties, *units]).stdout + manager

    before = look()
    done = sleeper.run([program, *asked, *arguments], user="alice")

    assert done.returncode != 0
    refused_by = next(who for words, who in REFUSALS.items() if words in done.stderr)
    assert look() == before
    seen(f"refused by {refused_by}; nothing changed")


def send(box, text):
    """What comes back at the socket for these bytes, sent as alice, who then hangs up her sending side."""
    script = (
        "import socket, sys\n"
        f"s = socket.socket(socket.AF_UNIX); s.connect('{CONTROL}'); s.settimeout(20)\n"
        "s.sendall(sys.stdin.buffer.read()); s.shutdown(socket.SHUT_WR)\n"
        "try: print(s.recv(65536).decode())\n"
        "except ConnectionResetError: pass\n"
    )
    return box.run([PYTHON, "-c", script], input=text, user="alice", check=True).stdout.strip()


def processes(box):
    return box.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", f"{PROCESS[:-8]}*"]).stdout


REQUESTS = {
    "nothing": "",
    "half a line": '["status"',
    "100 kB": '["' + "x" * 100_000 + '"]\n',
    "brackets without end": "[" * 4000 + "\n",
    "no list": '{"status": 1}\n',
    "another command": '["apply"]\n',
    "a file of root's to classify": '["classify", "/etc/shadow"]\n',
    "a file of root's as --config": '["plan", "--config", "/etc/shadow"]\n',
    "a file of root's as a name": '["explain", "../../etc/shadow"]\n',
    "a line break in a name": '["pause", "a\\n[Service]"]\n',
}


@fault(
    "a member of the group sends garbage to the socket",
    made=f"straight to the socket: {', '.join(REQUESTS)}",
    promised="nothing is read, changed or left behind, and the next request is answered",
)
def test_requests_that_are_none(fleet, seen):
    fleet.configure({"a": FITS})
    fleet.supervisor("apply", "--no-wait")
    before = fleet.history("a")

    answers = {name: send(fleet.box, text) for name, text in REQUESTS.items()}

    fleet.box.wait_until(lambda: not processes(fleet.box), "the processes have ended")
    told = {name: json.loads(answer) for name, answer in answers.items() if answer}
    assert all(answer["code"] == 2 and answer["out"] == "" for answer in told.values())
    assert "root:" not in "".join(answers.values())
    assert fleet.history("a") == before
    assert as_user(fleet.box, "alice", "status").returncode == 0
    seen(f"{len(answers) - len(told)} are hung up on, {len(told)} are told it is not for them; none leaves a trace")


@fault(
    "a member of the group uses up all connections",
    made="16 connections that say nothing, and one more",
    promised="root and the daemon notice nothing; the silent ones are hung up on, and others are answered again",
)
def test_connections_that_say_nothing(fleet, seen):
    fleet.configure({"a": FITS})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    before = pid(fleet.box)
    script = (
        "import socket, time\n"
        f"held = [socket.socket(socket.AF_UNIX) for _ in range(16)]\nfor s in held: s.connect('{CONTROL}')\n"
        "print('held', flush=True)\nfor s in held: s.settimeout(60); s.recv(1)\n"
    )
    holder = fleet.box.popen([PYTHON, "-c", script], user="alice", stdout=-1)
    assert holder.stdout.readline() == "held\n"

    refused = as_user(fleet.box, "alice", "status")
    assert fleet.run("status").returncode == 0

    assert (refused.returncode, "try again" in refused.stderr) == (71, True)
    assert holder.wait(60) == 0
    holder.stdout.close()
    fleet.box.wait_until(lambda: as_user(fleet.box, "alice", "status").returncode == 0, "an answer again")
    assert pid(fleet.box) == before
    seen("the 17th is told to try again; root is answered meanwhile, and the group once the 16 were hung up on")


@fault(
    "a member of the group connects 1,000 times as fast as possible",
    made="1,000 connections, each hung up on at once",
    promised="the daemon and root's commands go on; at worst the socket is closed until root starts it again",
)
def test_connections_without_end(fleet, seen):
    fleet.configure({"a": FITS})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    before = pid(fleet.box)
    script = (
        "import socket\nfor _ in range(1000):\n"
        f"  with socket.socket(socket.AF_UNIX) as s:\n    try: s.connect('{CONTROL}')\n    except OSError: pass\n"
    )
    fleet.box.run([PYTHON, "-c", script], user="alice", check=True)

    assert fleet.run("status").returncode == 0
    fleet.box.wait_until(lambda: not processes(fleet.box), "the processes have ended")

    def started_again():
        """A limit of systemd's counts over two seconds, also over a restart, which it may refuse as long."""
        fleet.box.run(["systemctl", "restart", SOCKET])
        return as_user(fleet.box, "alice", "status").returncode == 0

    fleet.box.wait_until(started_again, "an answer again")
    fleet.wait_for("a", "ready")
    assert pid(fleet.box) == before
    seen("the same daemon, the service came up, and a restart of the socket puts it right")


@fault(
    "an unprivileged user tries to hold the lock",
    made="`flock` on /run/vllm-supervisor/lock as that user, while a service fails",
    promised="that user cannot even open it, so no remedy and no `apply` has to wait",
)
def test_a_stranger_and_the_lock(fleet, seen):
    fleet.configure({"a": HALF_FITS})
    fleet.supervisor("apply", "--no-wait")
    mode = fleet.box.run(["stat", "-c", "%a", "/run/vllm-supervisor/lock"]).stdout.strip()

    held = fleet.box.run(["flock", "/run/vllm-supervisor/lock", "true"], user="bob")
    fleet.start_daemon()
    fleet.wait_for("a", "ready")

    assert held.returncode != 0
    assert "Permission denied" in held.stderr
    seen(f"permission denied, mode {mode}; {len(fleet.steps('a'))} step")


START = "/var/lib/vllm/start"


def waiting(fleet):
    """A vLLM that begins once there is a file, so that whatever must come before it does."""
    return script(fleet, f'until [ -e {START} ]; do sleep 0.05; done\nexec {VLLM} "$@"')


def test_a_pause_outlives_a_reboot_and_ends_with_an_answer(fleet):
    """What fails meanwhile is told and left alone, whoever starts it; then its latest run is answered."""
    fleet.configure({"a": {**HALF_FITS, "executable": waiting(fleet)}})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    assert as_user(fleet.box, "alice", "pause", "--all").returncode == 0
    fleet.box.run(["touch", START], check=True)
    unit = fleet.unit("a")
    why = fleet.box.wait_until(lambda: rows(fleet, "withheld"), "a failure that is told")[0]["why"]
    assert "paused: 1024 sequences did not fit; trying 512" in why

    fleet.box.reboot(power_cut=True)
    fleet.start_daemon()
    fleet.box.wait_until(lambda: len(rows(fleet, "withheld")) > 1, "another")

    assert (fleet.unit("a"), fleet.steps("a"), rows(fleet, "started-again")) == (unit, [], [])
    assert re.search(r"none, paused by alice", fleet.supervisor("status", "a"))
    assert "resume --all" in fleet.supervisor("explain", "a")
    alone = fleet.run("resume", "a")
    assert (alone.returncode, "resume --all" in alone.stderr) == (78, True)
    fleet.supervisor("resume", "--all")
    fleet.wait_for("a", "ready")
    assert fleet.steps("a") == [(1024, 512)]


@pytest.mark.parametrize("told", [True, False], ids=["told", "not-told"])
def test_what_failed_for_good_during_a_pause_is_answered_after_it(fleet, told):
    """Nobody starts it again: the run from the time of the pause is the latest, and its evidence counts.

    A daemon that is not told of the end of the pause, as it was just starting, finds out at the next line it reads.
    """
    fleet.configure({"a": {**HALF_FITS, "executable": waiting(fleet)}})
    fleet.box.write("/etc/systemd/system/vllm-a.service.d/once.conf", "[Service]\nRestart=no\n")
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    fleet.supervisor("pause", "a")
    fleet.box.run(["touch", START], check=True)
    fleet.box.wait_until(lambda: rows(fleet, "withheld"), "a failure that is told")
    fleet.box.wait_until(lambda: fleet.show("a", "ActiveState") == "failed", "the end of the start")

    deaf = {} if told else with_slow(fleet, "systemctl", '[ "$1 $3" = "kill --signal=SIGHUP" ] && exit 1')
    fleet.box.run([SUPERVISOR, "resume", "a"], env=deaf, check=True)
    fleet.box.run(["logger", "whatever"], check=True)

    fleet.wait_for("a", "ready")
    assert fleet.steps("a") == [(1024, 512)]


HELD, GO = "/run/held", "/run/go"


def test_a_pause_in_the_middle_of_a_recovery(fleet):
    """The act under way ends, no other follows; what was decided is carried out on resume."""
    fleet.box.write(
        "/opt/shim/systemctl",
        f'#!/bin/sh\n[ "$1" = kill ] && touch {HELD} && until [ -e {GO} ]; do sleep 0.05; done\n'
        'exec /usr/bin/systemctl "$@"\n',
        mode=0o755,
    )
    path = f"Environment=PATH=/opt/shim:{SUPERVISOR.rpartition('/')[0]}:/usr/bin:/bin"
    fleet.box.write(f"/etc/systemd/system/{DAEMON}.d/shim.conf", f"[Service]\n{path}\n")
    fleet.box.write("/etc/systemd/system/vllm-a.service.d/once.conf", "[Service]\nRestart=no\n")
    fleet.configure({"a": HALF_FITS})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    fleet.box.wait_until(lambda: fleet.box.run(["test", "-e", HELD]).returncode == 0, "the kill under way")

    fleet.supervisor("pause", "a")
    fleet.box.run(["touch", GO], check=True)
    fleet.box.wait_until(
        lambda: said_by_the_daemon(fleet, "services in force: a; paused: a"), "the daemon knows", timeout=30
    )
    assert (fleet.show("a", "ActiveState"), rows(fleet, "started-again")) == ("failed", [])

    fleet.supervisor("resume", "a")
    fleet.wait_for("a", "ready")
    assert fleet.steps("a") == [(1024, 512)]
    assert len(rows(fleet, "started-again")) == 1


def test_apply_goes_on_while_it_is_paused(fleet):
    """The pause is about what the daemon does by itself; remedies that are switched off are shown too."""
    fleet.configure({"a": HALF_FITS})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    fleet.supervisor("pause", "a")

    fleet.configure({"a": {**HALF_FITS, "max_num_seqs": 256, "remediation": {"enabled": False}}})
    fleet.supervisor("apply")

    status = fleet.status()["a"]
    assert (status["condition"], status["effective"], status["enabled"]) == ("ready", 256, False)
    assert "switched off, paused by root" in fleet.supervisor("status")
    assert "remediation: {enabled: false}" in fleet.supervisor("explain", "a")


def test_the_catalog_is_installed_by_the_lines_of_the_readme(box):
    """`journalctl -x` then explains what the daemon says."""
    lay_out(box)
    lines = [line for line in shell_lines("README.md").splitlines() if "catalog" in line]

    box.run(["sh", "-euc", "\n".join(lines)], check=True)

    told = box.run(
        ["journalctl", "--dump-catalog", *(message_id for _, message_id in VOICE.values())], check=True
    ).stdout
    assert told.count("Defined-By: vllm-supervisor") == len(VOICE)


def test_how_exposed_the_process_of_a_request_is(fleet):
    """By systemd's own measure, of 10."""
    line = fleet.box.run(["systemd-analyze", "security", "--no-pager", PROCESS.replace("@", "@1")]).stdout.splitlines()[
        -1
    ]

    assert float(re.search(r": ([\d.]+) ", line)[1]) <= 2.0, line
