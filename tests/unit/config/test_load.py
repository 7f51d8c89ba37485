"""From files to services: what is taken, what is refused, in which words, and what goes on regardless."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from vllm_supervisor.config import Configuration, Problem, Service, load
from vllm_supervisor.config.document import MAX_BYTES
from vllm_supervisor.errors import ConfigError

HEAD = "services:\n  a:\n    model: org/a\n    executable: /opt/vllm/bin/vllm\n"


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty configuration directory that is the current one, so that paths in messages are short."""
    monkeypatch.chdir(tmp_path)
    return Path("config.yaml")


def write(files: Mapping[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def loaded(at: Path, text: str, **conf_d: str) -> Configuration:
    write({str(at): text, **{f"conf.d/{name}.yaml": other for name, other in conf_d.items()}})
    return load(at)


def messages(configuration: Configuration) -> list[str]:
    return [str(problem) for problem in configuration.problems]


# What is taken.


def test_a_service_with_all_defaults(at: Path) -> None:
    service = loaded(at, HEAD).services["a"]

    assert service == Service(name="a", source=at, model="org/a", executable=Path("/opt/vllm/bin/vllm"))
    assert (service.user, service.port, service.max_num_seqs) == ("vllm", 8000, None)
    assert (service.remediation.enabled, service.remediation.floor, service.remediation.max_attempts) == (True, 8, 8)


def test_services_are_sorted_by_name(at: Path) -> None:
    found = loaded(at, HEAD + "    port: 1\n    gpus: [7]\n", z=HEAD.replace("a:", "0:"))

    assert list(found.services) == ["0", "a"]


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "services:\n", "defaults: {}\nservices: {}\n"])
def test_no_services_are_no_problem(at: Path, text: str) -> None:
    assert loaded(at, text) == Configuration({}, (), frozenset())


def test_defaults_reach_every_file_and_mappings_are_merged(at: Path) -> None:
    defaults = (
        "defaults:\n  executable: /opt/vllm/bin/vllm\n  environment: {A: 1, B: 2}\n  remediation: {floor: 16}\n"
        "  arguments: {enforce_eager: true, seed: 1, max-model-len: 4096}\n"
    )
    other = (
        "services:\n  b:\n    model: org/b\n    environment: {B: 3}\n    remediation: {max_attempts: 2}\n"
        "    arguments: {enforce-eager: null, max_model_len: 8192}\n"
    )

    service = loaded(at, defaults, b=other).services["b"]

    assert service.source == Path("conf.d/b.yaml")
    assert service.environment == {"A": "1", "B": "3"}
    assert service.arguments == {"seed": "1", "max-model-len": "8192"}  # one flag in any spelling; null takes it back
    assert (service.remediation.floor, service.remediation.max_attempts) == (16, 2)


def test_numbers_stay_as_they_were_written(at: Path) -> None:
    """Also by way of JSON, which is how a service is kept between apply and the daemon."""
    arguments = (
        "    arguments: {revision: 1e10, gpu-memory-utilization: 0.950, names: [1.10], x.y: [1, 2.5], j: {n: 3}}\n"
    )
    service = loaded(at, HEAD + arguments).services["a"]

    assert service.arguments == {
        "revision": "1e10",
        "gpu-memory-utilization": "0.950",
        "names": ["1.10"],
        "x.y": [1, 2.5],
        "j": {"n": 3},
    }
    assert Service.model_validate_json(service.model_dump_json()) == service


# What is refused, and how it is said.


def problem_cases() -> list[object]:
    """Lines under a service -> the problem, without `config.yaml:` before and with the line it is on after it."""
    own, secret = "it has a key of its own", "every user of the host can read a secret on a command line"
    cases = {
        "port: '8000'": '5: cannot use services.a.port = "8000": not a whole number; write digits, without quotes',
        "port: 99999": "5: cannot use services.a.port = 99999: too large; use 65535 or less",
        "port: true": "5: cannot use services.a.port = true: not a whole number; write digits, without quotes",
        "port: null": "5: cannot use services.a.port = null: not a whole number; write digits, without quotes",
        "max_num_seqs: 0": "5: cannot use services.a.max_num_seqs = 0: too small; use 1 or more",
        "gpus: 0": "5: cannot use services.a.gpus = 0: not a list; write it as [0, 1]",
        "gpus: []": "5: cannot use services.a.gpus = []: an empty list; leave the key out to use all",
        "gpus: [0, 0]": "5: cannot use services.a.gpus = [0, 0]: a GPU is listed twice; list each once",
        "gpus: [MIG-1]": '5: cannot use services.a.gpus.0 = ["MIG-1"]: not a whole number; '
        "write digits, without quotes",
        "gpus: [256]": "5: cannot use services.a.gpus.0 = [256]: too large; use less than 256",
        "host: http://x": '5: cannot use services.a.host = "http://x": not an address or a host name; '
        "write it without scheme, port and brackets",
        "user: 'Domain\\x'": '5: cannot use services.a.user = "Domain\\\\x": not a name of a user or group; '
        "use one that exists on this host",
        "max-num-seqs: 4": "5: cannot use services.a.max-num-seqs = 4: no such key; did you mean `max_num_seqs`?",
        "gpu: [0]": "5: cannot use services.a.gpu = [0]: no such key; did you mean `gpus`?",
        "remediation: {floors: 3}": "5: cannot use services.a.remediation.floors = 3: no such key; "
        "did you mean `floor`?",
        "remediation: 3": "5: cannot use services.a.remediation = 3: not a mapping; "
        "write `KEY: VALUE` lines under it, indented",
        "remediation: {enabled: 'no'}": '5: cannot use services.a.remediation.enabled = "no": neither true nor false; '
        "write true or false, without quotes",
        "environment: {CUDA_VISIBLE_DEVICES: 0}": "5: cannot use services.a.environment.CUDA_VISIBLE_DEVICES = 0: "
        "the tool sets it; list the GPUs under the service's `gpus:`",
        "environment: {A-B: x}": '5: cannot use services.a.environment.A-B = "x": not the name of a variable; '
        "use letters, digits and underscores, not a digit first",
        "environment: {A: true}": "5: cannot use services.a.environment.A = true: true and false are not text; "
        "write it in quotes, as the program expects it: '1' or 'true'",
        "environment: {A: null}": "5: cannot use services.a.environment.A = null: a variable is one text; "
        "quote it if it begins with { or [",
        "environment: {HF_TOKEN: hf_abc}": "5: cannot use services.a.environment.HF_TOKEN = (not shown): a secret here "
        "can be read by every user of the host; give its file as `credentials: {HF_TOKEN: /path}`",
        "credentials: {A: rel}": "5: cannot use services.a.credentials.A = (not shown): not the absolute path of a "
        "file; begin with /, without backslashes or control characters",
        "credentials: {HUGGING_FACE_HUB_TOKEN: /x}": "5: cannot use services.a.credentials.HUGGING_FACE_HUB_TOKEN = "
        "(not shown): nothing reads a credential of that name; call it HF_TOKEN",
        "arguments: {max_num_seqs: 4}": f"5: cannot use services.a.arguments.max_num_seqs = 4: {own}; "
        "set the service's `max_num_seqs:`",
        "arguments: {hf-token: x}": f"5: cannot use services.a.arguments.hf-token = (not shown): {secret}; "
        "give the token's file as `credentials: {HF_TOKEN: /path}`",
        "arguments: {a_b: 1, a-b: 2}": "5: cannot use services.a.arguments.a-b: the same flag as `a_b`, "
        "which is given too; keep one of them",
        "arguments: {enforce-eager: }": "5: cannot use services.a.arguments.enforce-eager = null: it has no value; "
        "write true for a switch",
        "arguments: {enforce-eager: yes}": "5: cannot use services.a.arguments.enforce-eager = yes: a switch for some "
        "readers of YAML and a text for others; write true or false, or 'yes' in quotes if the text is meant",
        "arguments: {x: []}": "5: cannot use services.a.arguments.x = []: an empty list; leave the flag out",
        "arguments: {x: [[1]]}": "5: cannot use services.a.arguments.x = [[1]]: "
        "a list holds texts, numbers or mappings; quote an item that is meant as text",
        'arguments: {x: "a\\nb"}': '5: cannot use services.a.arguments.x = "a\\nb": it holds a line break or a NUL; '
        "a unit's values are one line: put long text into a file",
        "start_timeout: 90m": '5: cannot use services.a.start_timeout = "90m": not a whole number; '
        "write digits, without quotes",
    }
    return [
        pytest.param(line, message, id=line.split(":")[0] + f"-{i}") for i, (line, message) in enumerate(cases.items())
    ]


@pytest.mark.parametrize(("line", "message"), problem_cases())
def test_a_problem_says_where_what_why_and_what_to_do(at: Path, line: str, message: str) -> None:
    assert messages(loaded(at, f"{HEAD}    {line}\n")) == [f"config.yaml:{message}"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("A", "not a name for a unit"),
        ("-a", "not a name for a unit"),
        ("a.b", "not a name for a unit"),
        ("x" * 49, "not a name for a unit"),
        ("supervisor", "`vllm-supervisor.service` is this tool's own unit"),
    ],
)
def test_a_name_that_makes_no_unit(at: Path, name: str, reason: str) -> None:
    (message,) = messages(loaded(at, HEAD.replace("a:", f"{name}:", 1)))

    assert message.startswith(f"config.yaml:2: cannot use services.{name}: {reason}; ")


def test_everything_at_once(at: Path) -> None:
    """Problems of all services and files in one go, each with its line, in order."""
    broken = "services:\n  b:\n    port: x\n    models: y\n  c: 3\n"

    found = loaded(at, HEAD + "    port: 0\n    gpus: []\n", b=broken)

    assert [(str(p.file), p.line, p.key) for p in found.problems] == [
        ("conf.d/b.yaml", 2, "services.b.model"),
        ("conf.d/b.yaml", 2, "services.b.executable"),
        ("conf.d/b.yaml", 3, "services.b.port"),
        ("conf.d/b.yaml", 4, "services.b.models"),
        ("conf.d/b.yaml", 5, "services.c"),
        ("config.yaml", 5, "services.a.port"),
        ("config.yaml", 6, "services.a.gpus"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("environment: {HF_TOKEN: sesame}", id="variable"),
        pytest.param("environment: [HF_TOKEN=sesame]", id="docker-style"),
        pytest.param("environments: {HF_TOKEN: sesame}", id="misspelt-key"),
        pytest.param("arguments: {api-key: sesame}", id="flag"),
        pytest.param("arguments: {api_key: [sesame]}", id="flag-list"),
        pytest.param("arguments: {api-key: sesame, api_key: sesame}", id="flag-twice"),
        pytest.param("arguments: {--api-key=x: sesame}", id="flag-with-dashes"),
        pytest.param("arguments: {api-ke: sesame}", id="abbreviated"),
        pytest.param("arguments: {db-password: sesame}", id="password"),
    ],
)
def test_no_secret_is_repeated(at: Path, text: str) -> None:
    found = loaded(at, f"{HEAD}    {text}\n")

    assert found.problems
    assert "sesame" not in " ".join(messages(found))


def test_a_place_has_one_problem(at: Path) -> None:
    """A key that may not be there at all is told, and not what is wrong with its value too."""
    found = loaded(at, f"{HEAD}    arguments: {{api-key: sk-proj-abcdefghijklmnopqrstuvwxyz0123456789}}\n")

    assert len(found.problems) == 1
    assert "api-key" in messages(found)[0]
    assert "credentials: {vllm.yaml: FILE}" in messages(found)[0]


# What goes on regardless.


def test_a_broken_file_stops_its_own_services_only(at: Path) -> None:
    found = loaded(at, HEAD, bad="services:\n  b: {model: org/b, port: x}\n  c: {model: org/c, port: 7}\n")

    assert list(found.services) == ["a"]
    assert found.broken == {Path("conf.d/bad.yaml")}


def test_a_broken_service_in_the_main_file_leaves_the_defaults_in_force(at: Path) -> None:
    main = "defaults: {executable: /opt/vllm/bin/vllm}\nservices:\n  bad: {model: org/x, port: x}\n"

    found = loaded(at, main, good="services:\n  b: {model: org/b}\n")

    assert list(found.services) == ["b"]
    assert found.broken == {at}


@pytest.mark.parametrize(
    "main",
    [
        pytest.param("defaults: {executable: /opt/vllm/bin/vllm\nservices:\n", id="syntax"),
        pytest.param("default: {executable: /opt/vllm/bin/vllm}\n", id="misspelt"),
        pytest.param("defaults: [/opt/vllm/bin/vllm]\n", id="not-a-mapping"),
        pytest.param("defaults: {environment: {A: yes}}\n", id="flaw-inside"),
        pytest.param("- a\n", id="a-list"),
    ],
)
def test_without_its_defaults_no_service_is_rendered(at: Path, main: str) -> None:
    """It would be another service than the one that runs now. Keys it may have from there are not called missing."""
    found = loaded(at, main, b=HEAD.replace("a:", "b:", 1), c="services:\n  c: {model: org/c}\n")

    assert found.services == {}
    assert found.broken == {at, Path("conf.d/b.yaml"), Path("conf.d/c.yaml")}
    assert not [problem for problem in found.problems if "missing" in problem.message]


def test_a_problem_in_the_defaults_is_told_once(at: Path) -> None:
    main = "defaults: {executable: /opt/vllm/bin/vllm, port: x}\n"

    found = loaded(
        at, main, b="services:\n  b: {model: m}\n  c: {model: m}\n", d="services:\n  d: {model: m, port: 7}\n"
    )

    assert [(str(p.file), p.key) for p in found.problems] == [("config.yaml", "defaults.port")]
    assert list(found.services) == ["d"]  # it has its own
    assert found.broken == {at, Path("conf.d/b.yaml")}


def test_defaults_of_the_wrong_kind_are_blamed_themselves(at: Path) -> None:
    main = "defaults: {executable: /opt/vllm/bin/vllm, environment: [A=1]}\n"

    (problem,) = loaded(at, main, b="services:\n  b: {model: m, environment: {B: 2}}\n").problems

    assert (problem.key, problem.message) == ("defaults.environment", "not a mapping")


def test_defaults_stand_in_the_main_file_only(at: Path) -> None:
    (problem,) = loaded(at, "", b="defaults: {}\n").problems

    assert (problem.key, problem.message) == ("defaults", "no such key in this file")
    assert problem.hint == "put them into config.yaml"


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        pytest.param(b"a: 1\nb: \xff\n", 2, "it is not UTF-8", id="not-utf-8"),
        pytest.param(b"#" * (MAX_BYTES + 1), None, "it is larger than 1 MiB", id="too-large"),
        pytest.param(b"- a\n", 1, "not a mapping", id="list"),
        pytest.param(b"oops: 1\n", 1, "no such key in this file", id="unknown-key"),
    ],
)
def test_a_file_that_is_no_configuration(at: Path, content: bytes, line: int | None, message: str) -> None:
    at.write_bytes(content)

    (problem,) = load(at).problems

    assert (problem.file, problem.line, problem.message) == (at, line, message)


def test_a_byte_order_mark_is_no_matter(at: Path) -> None:
    at.write_bytes(b"\xef\xbb\xbf" + HEAD.encode())

    assert list(load(at).services) == ["a"]


def test_only_yaml_files_are_read_and_yml_is_not_forgotten(at: Path) -> None:
    write(
        {
            "config.yaml": "",
            "conf.d/a.yml": HEAD,
            "conf.d/.b.yaml.swp": "x: [",
            "conf.d/.c.yaml": "x: [",
            "conf.d/README": "",
        }
    )

    assert [(str(p.file), p.hint) for p in load(at).problems] == [("conf.d/a.yml", "rename it to .yaml")]


@pytest.mark.parametrize("directory", [False, True], ids=["missing", "directory"])
def test_nothing_to_read_is_an_error(at: Path, *, directory: bool) -> None:
    if directory:
        at.mkdir()

    with pytest.raises(ConfigError, match=r"^cannot read config\.yaml: "):
        load(at)


def test_a_problem_without_a_line_names_the_file() -> None:
    assert (
        str(Problem(Path("x.yaml"), None, "", "", "it is not UTF-8")) == "x.yaml: cannot use the file: it is not UTF-8"
    )
