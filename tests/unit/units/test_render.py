"""What stands in a unit and why, beyond what the goldens show; and what can be read back from its text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from vllm_supervisor import __version__
from vllm_supervisor.config import Service
from vllm_supervisor.errors import ConfigError
from vllm_supervisor.units import (
    Cap,
    Header,
    Host,
    base_url,
    header,
    intact,
    needs_restart,
    ordering,
    render,
    render_all,
    run_hash,
    service_name,
    unit_name,
)
from vllm_supervisor.units.render import SINCE
from vllm_supervisor.units.text import MANAGER_SIDE

HOST = Host(252, ("/opt/vllm-supervisor/bin/vllm-supervisor",))
FINGERPRINT = "0123456789abcdef"


def service(name: str = "a", **values: Any) -> Service:
    return Service.model_validate(
        {"name": name, "source": Path("/etc/x.yaml"), "model": "org/m", "executable": "/opt/vllm/bin/vllm", **values}
    )


def unit(wanted: Service | None = None, cap: Cap | None = None, host: Host = HOST, **other: Any) -> str:
    return render(wanted or service(), cap, host, **{"fingerprint": FINGERPRINT, "after": [], **other})


def setting(text: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


def seconds(text: str, key: str) -> int:
    (value,) = setting(text, key)
    return int(value)


# What stands in it.


@pytest.mark.parametrize("version", [249, 252, 257])
@pytest.mark.parametrize("timeout", [1, 5400, 604800])
def test_the_start_limit_can_trigger(version: int, timeout: int) -> None:
    """Even if every start takes all it may, is then stopped in all the time that may take, and waits the longest."""
    text = unit(service(start_timeout=timeout, arguments={"shutdown-timeout": 600}), host=Host(version, HOST.program))
    delays = [int(value) for key in ("RestartSec", "RestartMaxDelaySec") for value in setting(text, key)]
    slowest = seconds(text, "TimeoutStartSec") + seconds(text, "TimeoutStopSec") + max(delays)

    assert seconds(text, "StartLimitIntervalSec") > seconds(text, "StartLimitBurst") * slowest
    assert text.index("StartLimitIntervalSec") < text.index("[Service]")


@pytest.mark.parametrize(("shutdown", "least"), [(None, 15), (0, 15), (120, 135), ("0.5", 16)])
def test_a_stop_outlasts_vllms_own_timers(shutdown: object, least: int) -> None:
    arguments = {} if shutdown is None else {"shutdown-timeout": shutdown}

    assert seconds(unit(service(arguments=arguments)), "TimeoutStopSec") >= least


def test_vllm_waits_for_its_engine_as_long_as_systemd_waits_for_vllm() -> None:
    """By itself it gives up after 600 s, which is less than a large model takes to load."""
    assert "VLLM_ENGINE_READY_TIMEOUT_S=7200" in setting(unit(service(start_timeout=7200)), "Environment")


def test_settings_newer_than_the_host_are_left_out() -> None:
    keys = {
        version: set(re.findall(r"^(\w+)=", unit(host=Host(version, HOST.program)), re.MULTILINE))
        for version in (249, 254)
    }

    assert keys[254] - keys[249] == set(SINCE)


def test_the_operators_environment_wins_but_for_the_gpus() -> None:
    text = unit(service(gpus=[3, 1], environment={"HOME": "/srv/x", "PATH": "/bin", "NO_COLOR": ""}))

    environment = dict(line.split("=", 1) for line in setting(text, "Environment"))
    assert (environment["HOME"], environment["PATH"], environment["NO_COLOR"]) == ("/srv/x", "/bin", "")
    assert environment["CUDA_VISIBLE_DEVICES"] == "3,1"
    assert "CUDA_VISIBLE_DEVICES" not in unit()


@pytest.mark.parametrize(
    ("user", "directory"), [pytest.param("vllm", "vllm", id="ours"), pytest.param("bob", "vllm-bob", id="another")]
)
def test_each_user_has_directories_of_its_own(user: str, directory: str) -> None:
    """Systemd hands a state directory over to the unit's user: two users would take it from each other."""
    text = unit(service(user=user))

    assert setting(text, "StateDirectory") == setting(text, "CacheDirectory") == [directory]
    assert f"HOME=/var/lib/{directory}" in setting(text, "Environment")


def test_nobody_elses_shared_memory_is_removed() -> None:
    """What a killed vLLM leaves in /dev/shm goes with its unit; what other programs of a person have there stays."""
    assert setting(unit(), "RemoveIPC") == ["yes"]
    assert setting(unit(service(user="bob")), "RemoveIPC") == []


@pytest.mark.parametrize(
    ("values", "host", "home"),
    [
        pytest.param({}, HOST, "read-only", id="nowhere"),
        pytest.param({"model": "/home/x/model"}, HOST, "no", id="model"),
        pytest.param({"model": "org/home/x"}, HOST, "read-only", id="a-repository"),
        pytest.param({"executable": "/root/venv/bin/vllm"}, HOST, "no", id="executable"),
        pytest.param({"environment": {"HF_HOME": "/run/user/7/hf"}}, HOST, "no", id="variable"),
        pytest.param({"arguments": {"x": {"path": ["/home"]}}}, HOST, "no", id="inside-json"),
        pytest.param({"arguments": {"x": "/srv/home/x"}}, HOST, "read-only", id="another-home"),
        pytest.param({}, Host(252, ("/home/x/bin/s",)), "no", id="gate"),
    ],
)
def test_homes_are_closed_unless_something_is_in_one(values: dict[str, Any], host: Host, home: str) -> None:
    assert setting(unit(service(**values), host=host), "ProtectHome") == [home]


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"host": "0.0.0.0"}, "http://127.0.0.1:8000"),
        ({"host": "::"}, "http://[::1]:8000"),
        ({"host": "10.0.0.7", "port": 80}, "http://10.0.0.7:80"),
        ({"host": "fd00::1"}, "http://[fd00::1]:8000"),
        ({"host": "gpu1.example"}, "http://gpu1.example:8000"),
        ({"arguments": {"ssl-certfile": "/x"}}, "https://127.0.0.1:8000"),
    ],
)
def test_where_it_answers(values: dict[str, Any], url: str) -> None:
    assert base_url(service(**values)) == url


def test_the_gate_is_told_the_main_process_by_systemd() -> None:
    (gate,) = setting(unit(host=Host(252, ("/opt/x/bin/python", "-m", "a b"))), "ExecStartPost")

    assert gate == '/opt/x/bin/python -m "a b" gate --pid $MAINPID --url http://127.0.0.1:8000'


def test_a_gpu_is_started_on_by_one_at_a_time() -> None:
    """Each waits for those before it by name that share a GPU with it, so no two wait for each other."""
    services = {name: service(name, gpus=gpus) for name, gpus in {"d": [0], "a": [0], "c": [1], "b": [2]}.items()} | {
        "e": service("e", gpus=[1, 0], arguments={"tensor-parallel-size": 2})
    }

    assert ordering(services, services) == {
        "a": [],
        "b": [],
        "c": [],
        "d": ["vllm-a.service"],
        "e": ["vllm-a.service", "vllm-c.service", "vllm-d.service"],
    }
    assert ordering(services, ["d"]) == {"d": ["vllm-a.service"]}


def test_nothing_a_value_holds_ends_its_line() -> None:
    """Neither a reason quoted from a log nor a path breaks out of its comment."""
    text = unit(
        service(source=Path("/etc/a\nExecStart=evil")), Cap({"max-num-seqs": 4}, "x\r\nExecStop=evil\u2028\x1b[31m\\")
    )

    assert not [line for line in text.split("\n") if line.startswith(("ExecStop", "ExecStart=evil"))]
    assert "\x1b" not in text


@pytest.mark.parametrize(("declared", "said"), [(None, True), (1024, True), (512, False), (128, False)])
def test_a_learned_cap_is_told_of_where_it_binds(declared: int | None, *, said: bool) -> None:
    text = unit(service(max_num_seqs=declared), Cap({"max-num-seqs": 512}, "because"))

    assert ("because" in text) == said
    assert ("vllm-supervisor forget a" in text) == said


def test_what_cannot_be_quoted_is_an_error() -> None:
    wanted = service().model_copy(update={"arguments": {"x": "a\nb"}})

    with pytest.raises(ConfigError, match="cannot put"):
        unit(wanted)


# What is read back from it.


def test_names() -> None:
    assert unit_name("a-b") == "vllm-a-b.service"
    assert service_name("vllm-a-b.service") == "a-b"


def test_the_header_tells_where_it_came_from() -> None:
    assert header(unit()) == Header(__version__, "/etc/x.yaml")


@pytest.mark.parametrize("text", ["", "[Unit]\n", "# Written by hand\n", "\n# Written by vllm-supervisor 1 from x\n"])
def test_no_other_file_has_one(text: str) -> None:
    assert header(text) is None
    assert run_hash(text) is None
    assert not intact(text)


def test_the_same_again_is_the_same_bytes() -> None:
    services = {name: service(name, gpus=[0]) for name in ("b", "a")}

    one = render_all(services, {"a": Cap({"max-num-seqs": 4}, "x")}, HOST, {"a": "1"})
    other = render_all(
        dict(reversed(services.items())), {"a": Cap({"max-num-seqs": 4}, "x")}, HOST, {"a": "1", "b": None}
    )

    assert one == other
    assert list(one) == ["vllm-a.service", "vllm-b.service"]


@pytest.mark.parametrize(
    ("change", "restart"),
    [
        pytest.param({"cap": Cap({"max-num-seqs": 4}, "why")}, True, id="cap"),
        pytest.param({"wanted": service(port=1)}, True, id="flag"),
        pytest.param({"wanted": service(environment={"A": "1"})}, True, id="variable"),
        pytest.param({"wanted": service(credentials={"A": "/x"})}, True, id="credential"),
        pytest.param({"wanted": service(user="bob")}, True, id="user"),
        pytest.param({"wanted": service(model="/home/x")}, True, id="sandbox"),
        pytest.param({"wanted": service(source=Path("/etc/y.yaml"))}, False, id="source"),
        pytest.param({"after": ["vllm-b.service"]}, False, id="order"),
        pytest.param({"fingerprint": "f" * 16}, False, id="fingerprint"),
        pytest.param({"host": Host(254, HOST.program)}, False, id="systemd-upgraded"),
        pytest.param({"host": Host(252, ("/usr/bin/vllm-supervisor",))}, False, id="gate-moved"),
    ],
)
def test_what_a_running_process_must_be_restarted_for(change: dict[str, Any], *, restart: bool) -> None:
    """And the mark that the process carries changes exactly with that."""
    old, new = unit(), unit(**change)

    assert needs_restart(old, new) == restart
    assert (run_hash(old) != run_hash(new)) == restart


def test_white_space_inside_a_word_counts() -> None:
    old, new = (unit(service(arguments={"x": text})) for text in ("a b", "a  b"))

    assert needs_restart(old, new)


def test_a_reworded_reason_restarts_nothing() -> None:
    old, new = unit(cap=Cap({"max-num-seqs": 4}, "one")), unit(cap=Cap({"max-num-seqs": 4}, "other"))

    assert old != new
    assert not needs_restart(old, new)


def test_every_manager_side_setting_is_in_the_template() -> None:
    """A name misspelt there would silently restart services."""
    text = unit(after=["vllm-b.service"], host=Host(max(SINCE.values()), HOST.program))

    assert {key for key in MANAGER_SIDE if not setting(text, key)} == set()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("RestartSec=10", "RestartSec=1"), id="a-setting-of-systemd"),
        pytest.param(lambda text: text.replace("--port", "--host 0.0.0.0 --port"), id="the-command"),
        pytest.param(lambda text: text + "# note to self\n", id="a-comment"),
        pytest.param(lambda text: text.split("\n", 2)[0], id="cut-short"),
    ],
)
def test_a_change_by_hand_is_noticed(change):
    """Whatever it is: a remedy must not write over it."""
    text = unit()

    assert intact(text)
    assert not intact(change(text))
