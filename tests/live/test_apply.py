"""plan and apply on a real systemd: what is written, started, restarted, removed, and what is left alone."""

from __future__ import annotations

import json

import pytest

from tests.live.fleet import CONFIG, DAEMON, VLLM, Fleet
from tests.sandbox import SUPERVISOR

ROOMY = {
    "model": "org/small",
    "gpus": [0],
    "environment": {"SIM_START_S": 0.3, "SIM_SHARDS": 2},
    "arguments": {"max-model-len": 8192},
}
UNIT = "/etc/systemd/system/vllm-a.service"


@pytest.fixture
def fleet(box):
    return Fleet(box)


def invocations(fleet, *names):
    return [fleet.show(name, "InvocationID") for name in names]


def exists(fleet, path):
    return fleet.box.run(["test", "-e", path]).returncode == 0


def test_plan_shows_and_touches_nothing(fleet):
    """A diff, a summary, exit code 3; no file, no store, no unit."""
    fleet.configure({"a": ROOMY})

    done = fleet.run("plan")

    assert done.returncode == 3
    assert f"+++ {UNIT}" in done.stdout
    assert "+ExecStart=/opt/vllm/bin/vllm serve org/small" in done.stdout
    assert done.stdout.rstrip().endswith("1 to create; to start: a")
    assert not any(exists(fleet, path) for path in (UNIT, "/var/lib/vllm-supervisor"))


def test_only_what_changed_is_restarted(fleet):
    """Another argument restarts its service; what systemd alone reads is reloaded and restarts nothing."""
    a, b, c = ROOMY, {**ROOMY, "gpus": [1], "port": 8001}, {**ROOMY, "gpus": [2], "port": 8002}
    fleet.configure({"a": a, "b": b, "c": c})
    fleet.supervisor("apply")
    before = invocations(fleet, "a", "b", "c")

    fleet.configure({"a": a, "b": {**b, "arguments": {"max-model-len": 4096}}, "c": {**c, "start_timeout": 1800}})
    said = fleet.supervisor("apply")

    after = invocations(fleet, "a", "b", "c")
    assert [x == y for x, y in zip(before, after, strict=True)] == [True, False, True]
    assert "2 to update, 1 unchanged; to restart: b" in said
    assert fleet.show("c", "TimeoutStartUSec") == "30min"


def test_a_user_plans_a_configuration_of_their_own(fleet):
    """Before it is proposed, say; a host where something was applied needs root, since only root knows what."""
    draft = "/home/vllm/draft.yaml"
    fleet.configure({"a": ROOMY})
    mine = fleet.box.read(CONFIG)
    fleet.box.run(["install", "-d", "-o", "vllm", "/home/vllm"], check=True)
    fleet.box.write(draft, mine)
    planned = fleet.box.run([SUPERVISOR, "plan", "--config", draft], user="vllm")
    fleet.box.write(draft, mine.replace('"port"', '"porty"').replace('"gpus"', '"gpsu"'))
    refused = fleet.box.run([SUPERVISOR, "plan", "--config", draft], user="vllm")
    fleet.supervisor("apply", "--no-wait")
    denied = fleet.box.run([SUPERVISOR, "plan", "--config", draft], user="vllm")

    assert (planned.returncode, planned.stdout.splitlines()[-1]) == (3, "1 to create; to start: a")
    assert refused.returncode == 78
    assert f"{draft}:" in refused.stderr
    assert denied.returncode == 77
    assert "root" in denied.stderr


def test_a_service_that_left_the_yaml_is_removed(fleet):
    """Stopped, disabled, its file gone; the others and foreign files stay."""
    foreign = "/etc/systemd/system/vllm-other.service"
    fleet.box.write(foreign, "[Service]\nExecStart=/bin/true\n")
    fleet.configure({"a": ROOMY, "b": {**ROOMY, "gpus": [1], "port": 8001}})
    fleet.supervisor("apply")
    pid = fleet.show("a", "MainPID")

    fleet.configure({"b": {**ROOMY, "gpus": [1], "port": 8001}})
    fleet.supervisor("apply")

    assert not exists(fleet, UNIT)
    assert not exists(fleet, f"/proc/{pid}")
    assert not exists(fleet, "/etc/systemd/system/multi-user.target.wants/vllm-a.service")
    assert fleet.show("b", "ActiveState") == "active"
    assert exists(fleet, foreign)
    assert list(fleet.status()) == ["b"]


def test_a_loading_service_is_removed_at_once(fleet):
    """It would swallow SIGTERM and wait for its stop timeout; a start that is given up has nothing to save."""
    fleet.configure({"a": {**ROOMY, "environment": {"SIM_START_S": 60}}, "b": {**ROOMY, "gpus": [1], "port": 8001}})
    fleet.supervisor("apply", "--no-wait")
    fleet.box.wait_until(lambda: "oading" in fleet.status()["a"]["phase"], "loading")

    fleet.configure({"b": {**ROOMY, "gpus": [1], "port": 8001}})
    fleet.supervisor("apply")

    assert not exists(fleet, UNIT)
    said = [str(entry["MESSAGE"]) for entry in fleet.box.journal("UNIT=vllm-a.service")]
    assert any("code=killed, status=9/KILL" in line for line in said)
    assert not any("timed out" in line for line in said)


def test_a_file_that_is_not_ours_is_refused_by_name(fleet):
    """It is left byte for byte; the other services are applied."""
    text = "[Service]\nExecStart=/bin/sleep infinity\n"
    fleet.box.write(UNIT, text)
    fleet.configure({"a": ROOMY, "b": {**ROOMY, "gpus": [1], "port": 8001}})

    done = fleet.run("apply")

    assert done.returncode == 78
    assert UNIT in done.stderr
    assert fleet.unit("a") == text
    assert fleet.show("b", "ActiveState") == "active"


def test_a_drop_in_that_replaces_the_command_is_reported(fleet):
    """It wins, as systemd has it, and the operator is told that no remedy can reach it."""
    fleet.box.write(f"{UNIT}.d/mine.conf", "[Service]\nExecStart=\nExecStart=/bin/sleep infinity\nExecStartPost=\n")
    fleet.configure({"a": ROOMY})

    done = fleet.run("apply")
    again = fleet.run("plan")

    assert f"{UNIT}.d/mine.conf replaces ExecStart=" in done.stderr + again.stdout


def test_a_unit_that_does_not_verify_stops_everything(fleet):
    """The second service's program is missing: systemd's own parser says so, and not a byte was written."""
    fleet.configure({"a": ROOMY, "b": {**ROOMY, "gpus": [1], "port": 8001, "executable": "/opt/none/bin/vllm"}})

    done = fleet.run("apply")

    assert done.returncode == 71
    assert "/opt/none/bin/vllm" in done.stderr
    assert "nothing was written" in done.stderr
    assert not exists(fleet, UNIT)


def test_a_broken_file_stops_its_own_services_only(fleet):
    """Its units stay as they are and run on; those of other files are applied; the error names file, line and key."""
    extra = "/etc/vllm-supervisor/conf.d/extra.yaml"
    fleet.configure({"a": ROOMY})
    service = {**ROOMY, "gpus": [1], "port": 8001}
    fleet.box.write(extra, json.dumps({"services": {"b": service}}))
    fleet.supervisor("apply")
    before = (fleet.unit("b"), *invocations(fleet, "b"))

    fleet.box.write(extra, "services:\n  b:\n    model: org/small\n    prot: 8001\n")
    fleet.configure({"a": {**ROOMY, "arguments": {"max-model-len": 4096}}})
    done = fleet.run("apply")

    assert done.returncode == 78
    assert f"{extra}:4: cannot use services.b.prot" in done.stderr
    assert "4096" in fleet.unit("a")
    assert (fleet.unit("b"), *invocations(fleet, "b")) == before


def test_apply_killed_between_write_and_start_is_finished_by_the_next(fleet):
    """The start was promised in the store before anything was written."""
    fleet.configure({"a": ROOMY})
    # The first systemctl call that starts something kills apply instead.
    fleet.box.write(
        "/usr/local/sbin/systemctl",
        '#!/bin/sh\ncase "$1" in restart) kill -9 $PPID; exit 1;; esac\nexec /usr/bin/systemctl "$@"\n',
        mode=0o755,
    )
    assert fleet.run("apply").returncode in (-9, 137)
    assert exists(fleet, UNIT)
    assert fleet.show("a", "ActiveState") == "inactive"
    fleet.box.run(["rm", "/usr/local/sbin/systemctl"], check=True)

    assert fleet.run("plan").returncode == 3
    fleet.supervisor("apply")

    assert fleet.show("a", "ActiveState") == "active"
    assert fleet.run("plan").returncode == 0


def test_a_unit_changed_by_hand_is_shown_and_put_right(fleet):
    """The plan shows the difference, and apply restores what the YAML says."""
    fleet.configure({"a": ROOMY})
    fleet.supervisor("apply")
    wanted = fleet.unit("a")
    fleet.box.write(UNIT, wanted.replace("--max-model-len 8192", "--max-model-len 99"))

    assert "-    --max-model-len 99" in fleet.run("plan").stdout
    fleet.supervisor("apply")

    assert fleet.unit("a") == wanted


def test_what_was_stopped_by_hand_stays_stopped(fleet):
    """Nothing changed, so apply starts nothing; it says how to."""
    fleet.configure({"a": ROOMY})
    fleet.supervisor("apply")
    fleet.box.run(["systemctl", "stop", "vllm-a"], check=True)

    done = fleet.run("apply")

    assert fleet.show("a", "ActiveState") == "inactive"
    assert "systemctl start vllm-a.service" in done.stderr


@pytest.mark.parametrize("by_hand", [["stop"], ["disable", "--now"]], ids=["stopped", "disabled"])
def test_the_operators_hand_outlasts_a_change(fleet, by_hand):
    """The unit is written, for whoever starts it next; it is neither enabled nor started."""
    fleet.configure({"a": ROOMY})
    fleet.supervisor("apply")
    fleet.box.run(["systemctl", *by_hand, "vllm-a"], check=True)
    enabled = fleet.show("a", "UnitFileState")

    fleet.configure({"a": {**ROOMY, "arguments": {"max-model-len": 4096}}})
    done = fleet.run("apply")

    assert done.returncode == 0
    assert "4096" in fleet.unit("a")
    assert (fleet.show("a", "ActiveState"), fleet.show("a", "UnitFileState")) == ("inactive", enabled)
    assert "vllm-a.service` starts it" in done.stderr


def test_a_service_that_failed_is_not_called_served(fleet):
    """Applied again with nothing changed it is left alone, with the command that tries again and exit code 4.

    Once only what the daemon goes by is changed, such as its floor, applying tries it again.
    """
    fleet.configure({"a": {**ROOMY, "environment": {**ROOMY["environment"], "SIM_FAULT": "bad-path"}}})
    fleet.box.write(f"{UNIT}.d/quick.conf", "[Service]\nRestart=no\n")
    assert fleet.run("apply").returncode == 4
    before = invocations(fleet, "a")

    again = fleet.run("apply")

    assert again.returncode == 4
    assert "systemctl reset-failed vllm-a.service && systemctl start vllm-a.service" in again.stderr
    assert invocations(fleet, "a") == before

    fault = {**ROOMY["environment"], "SIM_FAULT": "bad-path"}
    fleet.configure({"a": {**ROOMY, "environment": fault, "remediation": {"floor": 4}}})
    assert "to start: a" in fleet.run("apply").stdout
    assert invocations(fleet, "a") != before


def test_services_on_one_gpu_start_one_after_the_other(fleet):
    """Two that profile together break each other: the second starts once the first serves."""
    half = {**ROOMY, "arguments": {"gpu-memory-utilization": 0.4}}
    fleet.configure({"a": half, "b": {**half, "port": 8001}})

    fleet.supervisor("apply")

    first_ready = int(fleet.show("a", "ActiveEnterTimestampMonotonic"))
    assert int(fleet.show("b", "ExecMainStartTimestampMonotonic")) >= first_ready


def test_without_a_configuration(fleet):
    """One line that names the file, and the code systemd knows as a configuration error."""
    done = fleet.run("plan")

    assert done.returncode == 78
    assert CONFIG in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unprivileged_user_is_told(fleet):
    """Before anything is looked at."""
    fleet.configure({"a": ROOMY})

    done = fleet.box.run(["vllm-supervisor", "apply"], user="vllm", env={"PATH": _path()})

    assert done.returncode == 77
    assert "root" in done.stderr


def _path():
    from tests.sandbox import SUPERVISOR

    return SUPERVISOR.rpartition("/")[0] + ":/usr/bin:/bin"


def test_the_daemon_leaves_the_services_running(fleet):
    """SIGTERM ends it at once; a new one takes the services as they are."""
    fleet.configure({"a": ROOMY})
    fleet.start_daemon()
    fleet.supervisor("apply")
    before = invocations(fleet, "a")

    fleet.box.run(["systemctl", "restart", DAEMON], check=True)

    assert fleet.show("a", "ActiveState") == "active"
    assert invocations(fleet, "a") == before
    assert "Serving" in fleet.box.wait_until(lambda: fleet.show("a", "StatusText"), "a status")


def test_progress_shows_in_systemctl_status(fleet):
    """The daemon says STATUS= for a process that knows nothing of systemd."""
    fleet.configure({"a": {**ROOMY, "environment": {"SIM_START_S": 12, "SIM_SHARDS": 40}}})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")

    text = fleet.box.wait_until(lambda: "shards" in (t := fleet.show("a", "StatusText")) and t, "progress")

    assert "Loading weights" in text


def test_no_program_no_start(fleet):
    """The program vanished after apply: systemd says so, the history names it, and nothing loops for ever."""
    fleet.configure({"a": ROOMY})
    fleet.start_daemon()
    fleet.supervisor("apply")
    fleet.box.run(["rm", VLLM], check=True)

    fleet.box.run(["systemctl", "restart", "--no-block", "vllm-a"], check=True)
    row = fleet.box.wait_until(lambda: [r for r in fleet.history("a") if r["kind"] == "reported"], "a report")[0]

    assert row["rule"] == "cannot-execute"
