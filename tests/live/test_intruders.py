"""What users, services, clients and publishers may try on a real host; docs/threat-model.md says who they are."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from tests import hostile
from tests.faults import fault
from tests.live.fleet import CONFIG, DAEMON, VLLM, Fleet
from tests.live.test_recovery import SINGLE, with_environment
from tests.sandbox import PYTHON
from vllm_supervisor.config import Service
from vllm_supervisor.units import Cap, Host, render, serve_argv

GO = "/run/go"
STATE = "/var/lib/vllm-supervisor"
TOKEN = "hf_" + "Canary0" * 6
PASSWORD = "Canary1Canary1"


@pytest.fixture
def fleet(box):
    return Fleet(box)


def script(fleet, text):
    """A stand-in for `vllm` that a test writes itself; where it lies."""
    fleet.box.write("/opt/vllm/bin/scripted", f"#!/bin/sh\n{text}\n", mode=0o755)
    return "/opt/vllm/bin/scripted"


# Unit files

READ_BACK = r"""
import json, subprocess, sys
units = json.load(sys.stdin)
for name, text in units.items():
    open(f"/run/systemd/system/{name}", "w").write(text)
subprocess.run(["systemctl", "daemon-reload"], check=True)
bus, path = "org.freedesktop.systemd1", lambda name: name.replace("-", "_2d").replace(".", "_2e")
found = {}
shown = subprocess.check_output(["systemctl", "show", "--all", "--", *units], text=True).split("\n\n")
for name, block in zip(units, shown):
    properties = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
    unit = f"/{bus.replace('.', '/')}/unit/{path(name)}"
    said = subprocess.check_output(
        ["busctl", "--json=short", "get-property", bus, unit, f"{bus}.Service", "ExecStart", "Environment"], text=True
    )
    commands, variables = (json.loads(line)["data"] for line in said.strip().split("\n"))
    found[name] = [properties, [[c[0], *c[1][1:]] for c in commands], variables]
json.dump(found, sys.stdout)
"""
# What is not a setting, or is one that each place of the YAML is there to change.
IDENTITY = {"Id", "Names", "FragmentPath", "Description", "Environment", "ExecStart", "ExecStartEx", "LoadCredential"}
MEANT = {"ProtectHome", "Group", "RestrictAddressFamilies", "TimeoutStopUSec", "StartLimitIntervalUSec"}


def taken():
    """What is hostile and taken all the same, as (place, service): of the many shapes of arguments a few."""
    arguments = 0
    for name, text in hostile.TEXTS.items():
        for place, values in hostile.placed(text):
            arguments += "arguments" in place
            many = "arguments" in place and arguments % 29
            if many or place.startswith(("source", "model in", "environment in")) or name == "long":
                continue  # 100 KB in each of a hundred units show nothing more
            try:
                yield f"{name} in {place}", Service.model_validate(values)
            except ValidationError:
                continue


def rendered(service, cap=None):
    host = Host(systemd_version=252, program=("/opt/vllm-supervisor/bin/vllm-supervisor",))
    return render(service, cap, host, fingerprint="0" * 16, after=[])


@fault(
    "hostile text in the YAML",
    made="24 texts (line breaks, %, $, quotes, escapes, ...) in place of each value and key; a quoted log line",
    promised="systemd reads the settings of the example, and the text only where it was meant",
)
def test_systemd_reads_no_setting_that_was_not_meant(box, seen):
    """Its own parser is asked for every property; the command and the variables are compared to the byte."""
    plain = Service.model_validate(hostile.example())
    cases = [("plain", plain, None), *((place, service, None) for place, service in taken())]
    cases += [
        ("reason", plain, Cap({"revision": "main"}, text))
        for text in hostile.TEXTS.values()
        if len(text) < 99 and text != "\ud800"
    ]
    units = {f"vllm-h{number}.service": rendered(service, cap) for number, (_, service, cap) in enumerate(cases)}

    done = box.run([PYTHON, "-c", READ_BACK], input=json.dumps(units), timeout=120, check=True)

    found = list(json.loads(done.stdout).values())
    expected, _, names = found[0]
    fixed = {key for key in expected if "Timestamp" not in key} - IDENTITY - MEANT
    for (place, service, cap), (properties, commands, variables) in zip(cases, found, strict=True):
        differ = {key for key in fixed if sorted(properties.get(key, "").split()) != sorted(expected[key].split())}
        assert differ | (properties.keys() - expected.keys()) == set(), place
        words = [word.replace("$", "$$") for word in serve_argv(service, cap)]  # halved when it is started
        assert commands == [words], place
        assert {v.partition("=")[0] for v in variables} - {
            v.partition("=")[0] for v in names
        } <= service.environment.keys()
        assert {f"{k}={v}" for k, v in service.environment.items()} <= set(variables), place
        assert properties["LoadError"] == expected["LoadError"], place
    assert len(cases) > 90
    seen("no property differs but those of the key itself; every word and variable as it was written")


# The journal

SENTENCE = (
    "(EngineCore pid=7) ERROR 11-29 15:26:59 [core.py:1510] RuntimeError: CUDA out of memory occurred when warming up "
    "sampler with 77 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`"
)
MESSAGES = {
    "started": "39f53479d3a045ac8e11786248231fbf",
    "stopping": "de5b426a63be47a7b6ac3eaac82e2f6f",
    "stopped": "9d1aaa27d60140bd96365438aad20286",
    "start failed": "be02cf6855d2428ba40df7e9d022f03d",
    "exited": "98e322203f7a4ed290d09fe03c09fe15",
    "failed": "d9b373ed55a64feb8242e02dbe79a49c",
    "restart scheduled": "5eb03494b6584870a536b337290809b3",
    "suppressed": "a596d6fe7bfa4994828e72309e95d61e",
}
# Every way into the journal: the native protocol, with fields of all kinds; standard output's, with a unit's name in
# its header; syslog's; and logger(1).
FORGE = """
import json, os, socket, subprocess, sys
unit, run, sentence, ids = json.loads(sys.argv[1])
claims = {
    "UNIT": unit, "OBJECT_SYSTEMD_UNIT": unit, "_SYSTEMD_UNIT": unit, "_SYSTEMD_INVOCATION_ID": run,
    "INVOCATION_ID": run, "OBJECT_SYSTEMD_INVOCATION_ID": run, "_TRANSPORT": "stdout", "_PID": "1", "_UID": "0",
    "_SYSTEMD_CGROUP": f"/system.slice/{unit}", "SYSLOG_IDENTIFIER": "systemd", "CODE_FUNC": "unit_emit",
    "VLLM_SUPERVISOR_SERVICE": "a", "VLLM_SUPERVISOR_MAX_NUM_SEQS": "77", "JOB_RESULT": "failed", "JOB_TYPE": "stop",
    "UNIT_RESULT": "oom-kill", "COMMAND": "ExecStart", "EXIT_CODE": "exited", "EXIT_STATUS": "1", "FORGED": "1"}
native = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def send(**more):
    text = "".join(f"{key}={value}\\n" for key, value in {**claims, **more}.items())
    native.sendto(text.encode(), "/run/systemd/journal/socket")
for transport in ("stdout", "journal", "driver"):
    send(_TRANSPORT=transport, MESSAGE=sentence)
    for name, id in ids.items():
        send(_TRANSPORT=transport, MESSAGE=f"Suppressed 9 messages from {unit}", MESSAGE_ID=id)
native.sendto(b"MESSAGE=" + sentence.encode() + b"\\nUNIT=" + unit.encode() + b"\\nUNIT=x\\nFORGED=1\\nMESSAGE=y\\n",
    "/run/systemd/journal/socket")
for user in ("", "root"):
    lines = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    lines.connect("/run/systemd/journal/stdout")
    lines.sendall(f"vllm\\n{unit if not sys.argv[2:] else ''}\\n3\\n0\\n0\\n0\\n0\\n".encode())
    if not sys.argv[2:]:  # from the service itself this would be its own word
        lines.sendall(f"{sentence}\\n".encode())
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.sendto(f"<3>systemd[1]: {sentence}".encode(), "/dev/log")
journald = f"MESSAGE={sentence}\\nUNIT={unit}\\nMESSAGE_ID={ids['started']}\\nFORGED=1\\n"
subprocess.run(["logger", "--journald"], input=journald.encode())
"""


@fault(
    "log entries forged by other users and units",
    made="native protocol, stdout's, syslog, logger: every field that claims the unit, its run, PID 1, a MESSAGE_ID",
    promised="nothing lowers, nothing is ready, nothing stopped; the real failure that follows is answered",
)
def test_forged_entries_are_not_believed(fleet, seen):
    """By a stranger, by the service's user in another unit, and by the service itself past its standard output."""
    by_itself = f'{PYTHON} /opt/forge.py "$(cat /run/claims)" itself'
    wait = f'until [ -e {GO} ]; do sleep 0.05; done; exec {VLLM} "$@"'
    fleet.box.write("/opt/forge.py", FORGE)
    executable = script(fleet, f"until [ -e /run/claims ]; do sleep 0.05; done; {by_itself}; {wait}")
    fleet.configure({"a": {**with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4), "executable": executable}})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    run = fleet.box.wait_until(lambda: fleet.show("a", "InvocationID"), "a run")
    claims = json.dumps(["vllm-a.service", run, SENTENCE, MESSAGES])

    fleet.box.write("/run/claims", claims)
    fleet.box.run([PYTHON, "/opt/forge.py", claims], user="daemon", check=True)
    other = ["systemd-run", "--wait", "--quiet", "--unit=vllm-b", "-p", "User=vllm"]
    fleet.box.run([*other, "--", PYTHON, "/opt/forge.py", claims], check=True)
    forged = fleet.box.wait_until(lambda: len(r := fleet.box.journal("FORGED=1")) >= 3 * 29 and r, "the forged entries")
    senders = {entry.get("_SYSTEMD_UNIT", "nobody's") for entry in forged}
    status = fleet.status()["a"]
    assert (status["condition"], fleet.show("a", "InvocationID")) == ("starting", run)
    assert [row["kind"] for row in fleet.history("a")] == ["applied"]

    fleet.box.write(GO, "")

    fleet.wait_for("a", "ready")
    kinds = [row["kind"] for row in fleet.history("a")]
    assert fleet.steps("a") == [(1024, 512)]
    assert kinds == ["applied", "lowered", "started-again", "ready"]
    assert {"vllm-a.service", "vllm-b.service"} < senders
    seen(f"from {len(senders)} senders: still starting; then 1024 to 512, as its own line said")


@fault(
    "a log entry of 32 MiB that claims a unit",
    made="an unprivileged process sends it in a memory file",
    promised="the daemon's memory does not grow with it, and it goes on",
)
def test_a_huge_forged_entry_costs_nothing(fleet, seen):
    """Entries that claim a unit are read before they are disbelieved; no more than a line's worth of them."""
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6)})
    fleet.start_daemon()
    fleet.supervisor("apply")
    pid = fleet.box.run(["systemctl", "show", DAEMON, "--value", "-p", "MainPID"]).stdout.strip()
    before_kib = peak_kib(fleet, pid)
    text = (
        "import array, os, socket, fcntl\n"
        "fd = os.memfd_create('x', os.MFD_ALLOW_SEALING)\n"
        "text = b'UNIT=vllm-a.service\\nFORGED=1\\nMESSAGE=CUDA out of memory ' + os.urandom(1 << 24).hex().encode()\n"
        "os.write(fd, text + b'\\n')\n"
        "fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 15)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect('/run/systemd/journal/socket')\n"
        "s.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))])\n"
    )
    fleet.box.run([PYTHON, "-c", text], user="daemon", check=True)
    fleet.box.wait_until(lambda: fleet.box.run(["journalctl", "-o", "cat", "-n1", "FORGED=1"]).stdout, "the entry")
    fleet.box.run(["systemctl", "restart", "vllm-a"], check=True)  # its lines come after

    fleet.box.wait_until(lambda: len([r for r in fleet.history("a") if r["kind"] == "ready"]) == 2, "ready again")

    assert peak_kib(fleet, pid) - before_kib < 16 * 1024
    seen("less than 16 MiB more at its peak; the next start is followed")


def peak_kib(fleet, pid):
    status = fleet.box.read(f"/proc/{pid}/status")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


# Secrets

LEAKING = f"""
import os, sys
if os.path.exists("{GO}"):
    os.execv("{VLLM}", ["{VLLM}", *sys.argv[1:]])
print("INFO 11-29 15:26:59 [utils.py:233] non-default args: {{'api_key': ['{PASSWORD}'], 'model': 'org/small'}}")
print("ERROR 11-29 15:26:59 [core.py:1510] RuntimeError: 401 for https://me:{PASSWORD}@hub, token {TOKEN}", flush=True)
sys.exit(1)
"""


@fault(
    "secrets in the log, in a credential, and in the wrong places of the YAML",
    made="a token and a password in each of them; every output, file and command line is searched for the two",
    promised="none shows them",
)
def test_no_output_shows_a_secret(fleet, seen):
    """Not the unit, the store, the journal of ours, any command of ours, nor the arguments of any process."""
    fleet.box.write("/etc/secrets/hf", TOKEN, mode=0o600)
    fleet.box.write("/opt/vllm/bin/leaking", f"#!{PYTHON}\n{LEAKING}", mode=0o755)
    service = {**SINGLE, "executable": "/opt/vllm/bin/leaking", "credentials": {"HF_TOKEN": "/etc/secrets/hf"}}
    said = []
    wrong = [
        {"environment": {"HF_TOKEN": TOKEN}}, {"environment": {f"HF_TOKEN={TOKEN}": "1"}}, {"environment": [TOKEN]},
        {"environment": {"HTTPS_PROXY": f"http://me:{PASSWORD}@proxy"}}, {"credentials": {"HF_TOKEN": TOKEN}},
        {"arguments": {"api-key": PASSWORD}}, {"arguments": {f"--api-key={PASSWORD}": True}}, {"hf_token": TOKEN},
        {"arguments": f"--api-key {PASSWORD}"}, {"arguments": {"x": {"y": {"password": PASSWORD}}}}, {"model": TOKEN},
        {"arguments": {"x": [f"Bearer {PASSWORD}", True]}}, {"host": TOKEN}, {"port": TOKEN}, {"user": TOKEN},
        {"arguments": {f"--api-key {PASSWORD}": True}}, {"arguments": {"x.password": PASSWORD}},
        {"hardening": {"UMask": TOKEN}}, {"max_num_seqs": {TOKEN: 1}},
    ]  # fmt: skip
    fleet.configure({f"w{n}": {**service, "port": 9000 + n, **values} for n, values in enumerate(wrong)})
    done = fleet.run("plan")
    assert done.returncode == 78
    assert {n for n in range(len(wrong)) if f"cannot use services.w{n}." not in done.stderr} == set()
    said.append(done.stdout + done.stderr)
    fleet.configure({"a": service})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    row = fleet.box.wait_until(lambda: [r for r in fleet.history("a") if r["kind"] == "reported"], "a report")[0]
    assert "401 for https://(not shown)@hub, token (not shown)" in row["quote"]

    fleet.box.write(GO, "")
    fleet.box.run(["systemctl", "restart", "--no-block", "vllm-a"], check=True)
    fleet.wait_for("a", "ready")

    for command in ("plan", "status", "status --json", "history", "history --json", "explain a", "apply"):
        done = fleet.run(*command.split())
        said.append(done.stdout + done.stderr)
    log = fleet.box.run(["journalctl", "-u", "vllm-a", "-o", "json"]).stdout
    assert TOKEN in log  # what vLLM itself prints is its own affair
    said.append(fleet.box.run(["vllm-supervisor", "classify", "--json"], input=log).stdout)
    said.append(fleet.box.run(["journalctl", "-o", "json", "--all", "_SYSTEMD_UNIT=" + DAEMON]).stdout)
    said.append(fleet.box.run(["systemctl", "show", "--all", "vllm-a", DAEMON]).stdout)
    said.append(fleet.box.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout)
    said.append(fleet.unit("a"))
    said.append(fleet.box.run(["sh", "-c", f"find {STATE} -type f -exec cat {{}} + | tr -c '[:print:]' ' '"]).stdout)
    assert all(said)
    shown = [text for text in said if "Canary" in text]
    assert shown == []
    seen(f"{len(wrong)} mistakes in the YAML, {len(said)} outputs and files: in none")


# Files


@fault(
    "the service's user puts symbolic links in place of our files",
    made="links to a file of root's, by our names, in every directory that the user may write to; vLLM's own is one",
    promised="no file of root's is changed, and none of root's is made there",
)
def test_links_of_the_service_user_lead_nowhere(boot, seen):
    """Through the first apply, a remedy, a forgetting and another apply."""
    fleet = Fleet(boot(tmpfs={"/tmp": "16M"}))  # the machine's own would show through
    fleet.box.run(["chmod", "1777", "/tmp"], check=True)
    canary = "/etc/canary"
    fleet.box.write(canary, "root's\n", mode=0o600)
    fleet.box.run(["cp", "-r", "/opt/vllm", "/opt/venv"], check=True)
    places = ["/var/lib/vllm", "/var/cache/vllm", "/dev/shm", "/tmp", "/opt/venv/lib/python3.11/site-packages"]
    names = ["store.sqlite", "store.sqlite-wal", "lock", "flags", "vllm-a.service", ".vllm-a.service.x~", "config.yaml",
             "vllm-supervisor-verify-x", "vllm-supervisor", "system"]  # fmt: skip
    for place in places:
        fleet.box.run(["install", "-d", "-o", "vllm", place] if place != "/tmp" else ["true"], check=True)
        for name in names:
            fleet.box.run(["ln", "-s", canary, f"{place}/{name}"], user="vllm", check=True)
    packages = places[-1]
    fleet.box.run(["touch", f"{packages}/vllm-\x1b]0;owned\x07\n.dist-info"], user="vllm", check=True)
    fleet.box.run(["chown", "-hR", "vllm", "/opt/venv"], check=True)
    fleet.box.run(["touch", "/run/before"], check=True)
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4)}, executable="/opt/venv/bin/vllm")
    fleet.start_daemon()

    said = fleet.supervisor("apply")
    said += fleet.supervisor("forget", "a")
    said += fleet.supervisor("apply")

    assert fleet.steps("a") == [(1024, 512)] * 2
    assert fleet.box.run(["stat", "-c", "%a %U %s", canary]).stdout.split() == ["600", "root", "7"]
    found = ["find", *places, "-newer", "/run/before", "-user", "root", "!", "-path", "/tmp/systemd-private-*"]
    made = set(fleet.box.run(found).stdout.split()) - set(places)
    assert made == set()
    assert "owned" not in said + fleet.unit("a")
    fleet.box.run(["rm", "/opt/venv/bin/vllm"], check=True)
    fleet.box.run(["mkfifo", "/opt/venv/bin/vllm"], user="vllm", check=True)
    fleet.configure({"a": {**SINGLE, "port": 9000}}, executable="/opt/venv/bin/vllm")
    assert "its arguments were not checked" in fleet.run("plan", timeout=20).stdout
    seen("the file is as it was; nothing of root's in those directories; a pipe in place of vLLM is not waited for")


@fault(
    "the service's user makes hard links to files of root's",
    made="to one file by our names, and to the unit, the store and the YAML, in its directories; root makes them, "
    "as if fs.protected_hardlinks were 0",
    promised="no file of root's is changed by way of them; its user reads and writes none that it could not before",
)
def test_hard_links_of_the_service_user_lead_nowhere(fleet, seen):
    """Through a remedy, a forgetting, another apply and a start, before which systemd looks at the directories."""
    canary, unit, mine = "/etc/canary", "/etc/systemd/system/vllm-a.service", "/var/lib/vllm/mine"
    fleet.box.write(canary, "root's\n", mode=0o600)
    fleet.box.run(["cp", "-r", "/opt/vllm", "/opt/venv"], check=True)
    places = ["/var/lib/vllm", "/var/cache/vllm", "/opt/venv/lib/python3.11/site-packages", mine]
    fleet.box.run(["install", "-d", "-o", "vllm", "-g", "vllm", *places], check=True)
    fleet.box.run(["chown", "-R", "vllm", "/opt/venv"], check=True)
    refused = fleet.box.run(["ln", canary, f"{mine}/by-the-user"], user="vllm").returncode != 0
    assert refused is (fleet.box.read("/proc/sys/fs/protected_hardlinks") == "1\n")
    names = ["store.sqlite", "store.sqlite-wal", "lock", "flags", "vllm-a.service", ".vllm-a.service.x~"]
    for place in places:
        fleet.box.run(["sh", "-c", f"cd {place} && for name; do ln {canary} $name; done", "sh", *names], check=True)
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4)}, executable="/opt/venv/bin/vllm")
    fleet.start_daemon()
    fleet.supervisor("apply")
    files = {"unit": unit, "store": f"{STATE}/store.sqlite", "yaml": CONFIG}
    for name, path in files.items():
        fleet.box.run(["ln", path, f"{mine}/of-{name}"], check=True)
    look = ["stat", "-c", "%n %a %U %h", *files.values()]
    owned = fleet.box.run(look).stdout
    kept = fleet.box.read(f"{mine}/of-unit")

    fleet.supervisor("forget", "a")
    fleet.supervisor("apply")
    fleet.box.run(["systemctl", "restart", "vllm-a"], check=True)

    assert fleet.steps("a") == [(1024, 512)] * 2
    assert fleet.box.run(["stat", "-c", "%a %U %s", canary]).stdout.split() == ["600", "root", "7"]
    # The unit was replaced, not written over: the link is to what it was.
    assert fleet.box.run(look).stdout == owned.replace(f"{unit} 644 root 2", f"{unit} 644 root 1")
    assert fleet.box.read(f"{mine}/of-unit") == kept
    tried = [f"echo x >>{mine}/of-{name}" for name in files] + [f"cat {mine}/of-store", f"cat {mine}/lock"]
    assert [act for act in tried if fleet.box.run(["sh", "-c", act], user="vllm").returncode == 0] == []
    seen("the unit is replaced, and its link is to what it was; no owner or mode differs; none can be written to")


@fault(
    "loader variables (LD_*) in the YAML",
    made="LD_DEBUG_OUTPUT into a directory of its user; a stand-in for nvidia-modprobe, which the unit runs as root",
    promised="they reach the service and nothing that is root's",
)
def test_the_loader_of_roots_programs_is_not_led(fleet, seen):
    """LD_PRELOAD would run the user's code as root; LD_DEBUG_OUTPUT shows whether the loader heeds them."""
    fleet.box.run(["cp", "/bin/true", "/usr/bin/nvidia-modprobe"], check=True)
    variables = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": "/var/lib/vllm/loader", "SIM_OUTSIDE_GIB": 0.6}
    fleet.configure({"a": with_environment(SINGLE, **variables)})

    fleet.supervisor("apply")

    owners = fleet.box.run(["sh", "-c", "stat -c %U /var/lib/vllm/loader.*"]).stdout.split()
    assert fleet.show("a", "ExecStartPre").count("status=0") == 1
    assert set(owners) == {"vllm"}
    seen("the loader wrote as the service's user only")


@fault(
    "a configuration that others may write to",
    made="the file, one of conf.d, or a directory has mode 0666 or 0777, or another owner",
    promised="refused, with the command that mends it; nothing on the host changes; the other files go on",
)
def test_a_writable_configuration_is_refused(fleet, seen):
    """And taken again once it is mended as the hint says."""
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6)})
    directory, more = CONFIG.rpartition("/")[0], f"{CONFIG.rpartition('/')[0]}/conf.d/b.yaml"
    refused = 0
    fleet.box.run(["mkdir", f"{directory}/conf.d"], check=True)
    for change, path in (("chmod 666", CONFIG), ("chown vllm", directory), ("chmod 777", f"{directory}/conf.d")):
        fleet.box.run([*change.split(), path], check=True)
        done = fleet.run("apply")
        assert done.returncode == 78, (change, path)
        assert fleet.box.run(["ls", "/etc/systemd/system/vllm-a.service"]).returncode
        mend = f"chown root:root {path} && chmod go-w {path}"
        assert mend in done.stderr, done.stderr
        fleet.box.run(["sh", "-c", mend], check=True)
        refused += 1
    fleet.box.write(more, json.dumps({"services": {"b": {**SINGLE, "gpus": [1], "port": 8001}}}), mode=0o666)

    done = fleet.run("apply")

    assert done.returncode == 78
    assert "every user may write to it" in done.stderr
    assert fleet.show("a", "ActiveState") == "active"
    assert fleet.show("b", "LoadState") == "not-found"
    seen(f"{refused} refused and mended; with one of conf.d refused the others are served")


@fault(
    "files that are not a configuration",
    made="a pipe that nobody writes to, /dev/zero, 100 MB, anchors that grow a billion-fold, 10,000 levels, a binary",
    promised="refused within seconds, in little memory",
)
def test_no_file_holds_plan_up(fleet, seen):
    """Each in place of the file, and of one in conf.d."""
    levels = zip("abcdefgh", "bcdefghi", strict=True)
    bomb = "a: &a [x]\n" + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in levels)
    fleet.box.write("/run/bomb", bomb)
    fleet.box.write("/run/deep", "{a: " * 10_000)
    fleet.box.run(["truncate", "-s", "100M", "/run/large"], check=True)
    fleet.box.run(["mkfifo", "/run/pipe"], check=True)
    limited = ["prlimit", "--as=536870912", "--", "vllm-supervisor", "plan"]
    directory = f"{CONFIG.rpartition('/')[0]}/conf.d"
    sources = ("/run/bomb", "/run/deep", "/run/large", "/run/pipe", "/dev/zero", "/bin/true")
    fleet.configure({})
    fleet.box.run(["mkdir", directory], check=True)
    for number, source in enumerate(sources):
        fleet.box.run(["ln", "-s", source, f"{directory}/{number}.yaml"], check=True)

    done = fleet.box.run(limited, timeout=60)

    assert done.returncode == 78
    told = {
        line.split(":")[0].strip() for line in done.stderr.splitlines() if "cannot use" in line and "/conf.d/" in line
    }
    assert told == {f"{directory}/{number}.yaml" for number in range(len(sources))}
    for source in ("/run/pipe", "/run/deep"):
        fleet.box.run(["ln", "-sfn", source, CONFIG], check=True)
        assert "cannot use" in fleet.box.run(limited, timeout=60).stderr
    seen("each is refused in words, within 512 MiB of address space")


# Our own rights

STATUS, ENVIRONMENT = "notify.status_for(pid, 'Working'); time.sleep(0.3)", "print(processes.environment(pid)['MARK'])"
NEEDS = {"CAP_SYS_ADMIN": STATUS, "CAP_SYS_PTRACE": ENVIRONMENT, "CAP_DAC_READ_SEARCH": ENVIRONMENT}


@pytest.mark.parametrize("capability", NEEDS)
@fault(
    "our own unit runs without {capability}",
    made="what needs it is done with those of our unit that serve the same end, and without this one",
    promised="it works with it and not without it: nothing is kept that is not needed",
)
def test_each_capability_is_needed(fleet, seen, capability):
    """Those of the unit are exactly those that are tried here."""
    unit = fleet.box.read(f"/etc/systemd/system/{DAEMON}")
    kept = (
        next(line for line in unit.splitlines() if line.startswith("CapabilityBoundingSet=")).partition("=")[2].split()
    )
    assert sorted(kept) == sorted(NEEDS)
    fleet.box.run(["systemd-run", "--unit=other", "-p", "User=vllm", "-p", "NotifyAccess=main", "-E", "MARK=Working",
                   "sleep", "600"], check=True)  # fmt: skip
    pid = fleet.box.run(["systemctl", "show", "other", "--value", "-p", "MainPID"]).stdout.strip()

    def works(capabilities):
        act = f"import time; from vllm_supervisor.host import notify, processes; pid = {pid}; {NEEDS[capability]}"
        properties = ["-p", f"CapabilityBoundingSet={' '.join(capabilities)}", "-p", "NoNewPrivileges=yes"]
        done = fleet.box.run(["systemd-run", "--quiet", "--wait", "--pipe", *properties, "--", PYTHON, "-c", act])
        shown = fleet.box.run(["systemctl", "show", "other", "-p", "StatusText"]).stdout
        return "Working" in done.stdout + shown

    # Some kernels let CAP_SYS_ADMIN read what CAP_SYS_PTRACE is for, others do not: each end by itself.
    together = [each for each in kept if NEEDS[each] == NEEDS[capability]]
    without = works([each for each in together if each != capability])
    assert (without, works(together)) == (False, True)
    seen("works with it, does not without")
