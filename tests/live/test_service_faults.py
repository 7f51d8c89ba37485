"""Services that do what no service should: what becomes of them, and of the others."""

from __future__ import annotations

import json

import pytest

from tests.faults import fault
from tests.live.fleet import DAEMON, VLLM, Fleet
from tests.live.points import SAYS, SENTENCE, script, serves_at_512
from tests.live.test_recovery import SINGLE, with_environment
from tests.sandbox import PYTHON

STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"
QUICK = {**with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6, SIM_START_S=0.2, SIM_SHARDS=1), "arguments": {}}


@pytest.fixture
def fleet(box):
    return Fleet(box)


def start(fleet, **services):
    """Apply services, each on a card and a port of its own, under a running daemon."""
    places = {name: {"gpus": [number], "port": 8000 + number} for number, name in enumerate(services)}
    fleet.configure({name: {**QUICK, **service, **places[name]} for name, service in services.items()})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")


def drop_in(fleet, text, name="a"):
    fleet.box.write(f"/etc/systemd/system/vllm-{name}.service.d/own.conf", f"[Service]\n{text}\n")


def rows(fleet, *kinds, name="a"):
    return [row for row in fleet.history(name) if row["kind"] in kinds]


def told(steps):
    return f"{len(steps)} step" + "".join(f", {tried} to {to}" for tried, to in steps)


def starts(fleet, name="a"):
    """When each start of a unit began, microseconds since the epoch."""
    entries = fleet.box.journal(f"UNIT=vllm-{name}.service", f"MESSAGE_ID={STARTING}")
    return [int(entry["__REALTIME_TIMESTAMP"]) for entry in entries]


@fault(
    "a failed start ignores SIGTERM and holds the port",
    made="a process that ignores it listens on the port and never ends",
    promised="it is killed at once, and the next start finds the port free",
)
def test_it_ignores_sigterm_and_holds_the_port(fleet, seen):
    """No time limit of a stop is waited for: a start that failed has nothing to save."""
    holds = "import socket, time; s = socket.socket(); s.bind(('', 8000)); s.listen(); time.sleep(1000)"
    start(fleet, a={"executable": serves_at_512(fleet, f"{SAYS}trap '' TERM HUP INT\nexec {PYTHON} -S -c \"{holds}\"")})

    fleet.wait_for("a", "ready")

    first, second = starts(fleet)
    within = "sooner" if second - first < 30_000_000 else "no sooner"
    seen(f"{told(fleet.steps('a'))}; started again {within} than after its TimeoutStopSec=")


@fault(
    "the main process is gone and a child keeps the GPU",
    made="a child in a session of its own, which ignores SIGTERM, holds a lock that the next start needs",
    promised="the next start waits until nothing of the old one is left",
)
def test_children_outlive_the_main_process(fleet, seen):
    """Whatever sessions they make, they are in the control group."""
    gpu = "/var/lib/vllm/gpu"
    child = f"(trap '' TERM HUP; setsid sh -c 'exec flock {gpu} sleep 1000' >/dev/null 2>&1 &)"
    held = f"until ! flock --nonblock {gpu} true; do sleep 0.05; done"
    program = serves_at_512(fleet, f"{child}\n{held}\n{SAYS}exit 1")
    needs = f"flock --nonblock {gpu} true || {{ echo 'RuntimeError: the card is in use' >&2; exit 1; }}\n"
    fleet.box.write(program, fleet.box.read(program).replace("exec /opt", f"{needs}exec /opt"), mode=0o755)
    start(fleet, a={"executable": program})

    fleet.wait_for("a", "ready")

    seen(f"{told(fleet.steps('a'))}; {len(starts(fleet))} starts, the second ready")


# Each process makes the next one and ends, eight at a time; ten seconds of it are enough.
FORKS = """
import os, time
ends = time.monotonic() + 10
for _ in range(8):
    if not os.fork():
        break
while time.monotonic() < ends:
    if os.fork():
        os._exit(0)
"""


@fault(
    "a failed start forks faster than it is killed",
    made="eight processes, each of which makes another and ends, over and over",
    promised="killed again until the control group is empty, then started",
)
def test_it_forks_faster_than_it_is_killed(fleet, seen):
    """None of them is there long enough to be listed and killed one by one."""
    fleet.box.write("/opt/vllm/bin/forks.py", FORKS)
    start(fleet, a={"executable": serves_at_512(fleet, f"{SAYS}exec {PYTHON} -S /opt/vllm/bin/forks.py")})

    fleet.wait_for("a", "ready")

    alive = fleet.box.run(["pgrep", "-f", "forks.py"]).stdout.split()
    seen(f"{told(fleet.steps('a'))}; {len(alive)} of them left")


@fault(
    "a service writes as many lines a second as journald takes",
    made="`yes` for two seconds, then the line that matters; another service fails meanwhile",
    promised="the line is found; the other is treated; the daemon's memory does not grow with it",
)
def test_it_floods_the_journal(fleet, seen):
    """Neither is anything of a line that says nothing kept."""
    drop_in(fleet, "RestartSec=1h")  # however slow the machine, it is not systemd that starts it again
    flood = f"timeout 2 yes 'INFO 11-29 15:26:59 [x.py:1] nothing of any importance' | head -n 150000 >&2\n{SAYS}exit 1"
    start(fleet, a={"executable": serves_at_512(fleet, flood)}, b=with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4))
    pid = fleet.box.run(["systemctl", "show", DAEMON, "--value", "-p", "MainPID"]).stdout.strip()

    for name in "ab":
        fleet.wait_for(name, "ready")

    lines = fleet.box.run(["sh", "-c", "journalctl -o cat -u vllm-a | grep -c importance"]).stdout
    status = fleet.box.read(f"/proc/{pid}/status")
    most_mib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024
    assert int(lines) > 20_000
    assert most_mib < 256  # what is mapped of the journal's files among it
    seen(f"both ready; {told(fleet.steps('a'))}; the other: {told(fleet.steps('b'))}; the daemon below 256 MiB")


@fault(
    "a service never becomes ready and never dies",
    made="it sleeps, and TimeoutStartSec= is a second",
    promised="systemd ends it; it is reported at priority err, and nothing is lowered",
)
def test_it_never_becomes_ready(fleet, seen):
    """A long load is no reason to load with less."""
    drop_in(fleet, "TimeoutStartSec=1")
    start(fleet, a={"executable": script(fleet, "exec sleep 1000")})

    row = fleet.box.wait_until(lambda: rows(fleet, "reported"), "a report")[0]

    said = [e for e in fleet.box.journal("-u", DAEMON) if row["rule"] in e["MESSAGE"]]
    seen(f"{row['rule']}, at priority {said[0]['PRIORITY']}; {len(fleet.steps('a'))} steps")


# Ends as soon as systemd says that it has started.
ENDS = f'(until systemctl --quiet is-active vllm-a; do sleep 0.05; done; {{}}kill -9 $$) &\nexec {VLLM} "$@"'
DEATHS = {
    "of memory, in a request": {"SIM_DIE_AFTER_S": 4, "SIM_DIE_HOW": "oom"},
    "with exit status 0": {"SIM_DIE_AFTER_S": 4, "SIM_DIE_HOW": "kill"},
    "with the sampler's sentence": {},
}


@pytest.mark.parametrize("how", DEATHS)
@fault(
    "a service dies right after it was ready, {how}",
    made="its engine ends by itself, or the whole of it is killed",
    promised="reported; systemd starts it again at the same value",
)
def test_it_dies_right_after_it_is_ready(fleet, seen, how):
    """What runs out of memory while serving did not run out of it while warming up."""
    service = with_environment(QUICK, **DEATHS[how])
    start(fleet, a=service if DEATHS[how] else {**service, "executable": script(fleet, ENDS.format(SAYS))})
    before = fleet.unit("a")

    row = fleet.box.wait_until(lambda: rows(fleet, "reported"), "a report")[0]

    assert fleet.unit("a") == before
    assert rows(fleet, "ready")
    state = fleet.box.wait_until(
        lambda: (state := fleet.show("a", "SubState")) in ("auto-restart", "start", "start-post", "running") and state,
        "its next start",
    )
    assert state
    seen(f"{row['rule']}; {len(fleet.steps('a'))} steps; started again")


@fault(
    "a service becomes ready and dies, over and over",
    made="it is killed as soon as it has started, and RestartSec= is 0",
    promised="the start limit of its unit ends it; the history is bounded by that",
)
def test_it_flaps(fleet, seen):
    """Each start leaves two rows, and there are five starts in some hours."""
    drop_in(fleet, "RestartSec=0")
    start(fleet, a={"executable": script(fleet, ENDS.format(""))})

    fleet.wait_for("a", "failed")
    # A run that is over before it was judged is not judged any more: the next one counts.
    fleet.box.wait_until(lambda: rows(fleet, "reported"), "a word on the last of them")

    status, again = fleet.status()["a"], fleet.run("apply")
    assert "failed before" in again.stderr
    assert len(rows(fleet, "ready", "reported")) <= 10
    seen(
        f"{len(starts(fleet))} starts, no more than 2 rows each, {len(fleet.steps('a'))} steps; "
        f"`status`: {status['condition']}; `apply` restarts nothing, exit code {again.returncode}"
    )


FAILS_FOR_GOOD = {
    "another program holds the GPU": ("SIM_FAULT=free-memory", 5),
    "vLLM refuses a flag": ("REFUSES=1", 1),
}


@pytest.mark.parametrize("cause", FAILS_FOR_GOOD)
@fault(
    "{cause}, until systemd gives up starting the service",
    made="at every start, with RestartSec=0",
    promised="failures are left to systemd; that it is down is said once, at priority 2, with what starts it again",
)
def test_it_fails_for_good(fleet, seen, cause):
    """Its start limit or its exit status ends it, also across a restart of the daemon; an operator starts it again."""
    drop_in(fleet, "RestartSec=0")
    refuses = "[ -z $REFUSES ] || { echo 'vllm serve: error: unrecognized arguments: --x' >&2; exit 2; }"
    variable, most = FAILS_FOR_GOOD[cause]
    start(fleet, a={"executable": script(fleet, f'export {variable}; {refuses}; exec {VLLM} "$@"')})

    row = fleet.box.wait_until(lambda: rows(fleet, "down"), "a word on its end")[0]
    fleet.box.run(["systemctl", "restart", DAEMON], check=True)
    assert fleet.status()["a"]["condition"] == "failed"
    began = len(starts(fleet))
    assert began == most

    fleet.box.run(["sh", "-c", row["why"].rpartition("mended: ")[2]])
    fleet.box.wait_until(lambda: len(rows(fleet, "down")) == 2, "a word on the end of those starts")

    assert len(starts(fleet)) > began
    told = fleet.box.journal("-u", DAEMON, f"VLLM_SUPERVISOR_INVOCATION={row['invocation']}")
    said = [entry for entry in told if row["why"] in str(entry["MESSAGE"])]
    rules = {row["rule"] for row in rows(fleet, "waiting", "reported")}
    seen(
        f"{began} starts, all {' and '.join(rules)}; said {len(said)} time, priority {said[0]['PRIORITY']}; "
        f"started again by those commands; {len(fleet.steps('a'))} steps"
    )


@fault(
    "a served prompt holds the sentence",
    made="a request with it and a traceback, which vLLM logs; then the service is killed",
    promised="nothing is lowered, then or later",
)
def test_a_prompt_that_quotes_the_error(fleet, seen):
    """A user pastes it into a chat; what comes after it is judged without it."""
    start(fleet, a=with_environment(QUICK, SIM_LOG_REQUESTS=1))
    fleet.wait_for("a", "ready")
    traceback = 'Traceback (most recent call last):\n  File "x.py", line 1, in _dummy_sampler_run\n'
    body = json.dumps({"model": "org/small", "prompt": f"x\n{traceback}{SENTENCE}\n", "max_tokens": 1})
    fleet.box.run(["curl", "-sf", "http://127.0.0.1:8000/v1/completions", "-d", body], check=True)
    fleet.box.run(["systemctl", "kill", "--signal=KILL", "vllm-a"], check=True)

    row = fleet.box.wait_until(lambda: rows(fleet, "reported"), "a word on its end")[0]

    assert any(SENTENCE in str(entry["MESSAGE"]) for entry in fleet.box.journal("-u", "vllm-a"))
    seen(f"{row['rule']}; {len(fleet.steps('a'))} steps")


@fault(
    "a service prints the sentence in the name of another",
    made="with the other's name and process in front, as a collector of logs writes it",
    promised="it is the writer that failed; the other is left alone",
)
def test_it_names_another_service(fleet, seen):
    """Who wrote a line is what journald says of it, not what stands in it."""
    line = f"Nov 29 15:26:59 host vllm-b[7]: {SENTENCE}"
    start(fleet, a={"executable": serves_at_512(fleet, f"cat >&2 <<'E'\n{line}\nE\nexit 1")}, b={})

    for name in "ab":
        fleet.wait_for(name, "ready")

    other = f"{len(fleet.steps('b'))} steps, {len(starts(fleet, 'b'))} start"
    seen(f"the writer: {told(fleet.steps('a'))}; the other: {other}")


OUTPUTS = {
    "without a line break at its end": f"printf %s '{SENTENCE}' >&2",
    "between NUL bytes": f"printf '\\000\\000%s\\000\\n' '{SENTENCE}' >&2",
    "between bytes that are no text": f"printf '\\377\\376\\n%s\\n\\377' '{SENTENCE}' >&2",
}


@fault(
    "the sentence names a value that the unit does not run with",
    made="it says 1024 whatever the command line says, as a wrapper with a flag of its own would make it",
    promised="one step; then it is reported that the unit's value has no effect",
)
def test_a_value_that_has_no_effect(fleet, seen):
    """Lowering on and on would be eight restarts of a service that none of them can cure."""
    start(fleet, a={"executable": script(fleet, f"{SAYS}exit 1")})

    row = fleet.box.wait_until(lambda: rows(fleet, "reported"), "a report")[0]

    seen(f"{told(fleet.steps('a'))}; {row['why']}")


@pytest.mark.parametrize("how", OUTPUTS)
@fault("the sentence comes {how}", made="it is the last that the process prints", promised="it is found")
def test_the_sentence_in_odd_dress(fleet, seen, how):
    """What else stands in the stream takes nothing away."""
    start(fleet, a={"executable": serves_at_512(fleet, f"{OUTPUTS[how]}\nexit 1")})

    fleet.wait_for("a", "ready")

    seen(told(fleet.steps("a")))


@fault(
    "a service closes its output, then dies",
    made="both streams are closed before anything is printed",
    promised="reported, with a word on missing evidence; nothing is lowered",
)
def test_it_says_nothing(fleet, seen):
    """A death without a word is no evidence of anything."""
    start(fleet, a={"executable": script(fleet, "exec >&- 2>&-\nexit 1")})

    row = fleet.box.wait_until(lambda: rows(fleet, "reported"), "a report")[0]

    missing = "says that lines are missing" if "lines of this run are missing" in row["why"] else "says nothing of it"
    seen(f"{row['rule']}, {missing}; {len(fleet.steps('a'))} steps")
