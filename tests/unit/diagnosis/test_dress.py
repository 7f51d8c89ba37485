"""The verdict does not depend on how a log is dressed: prefix, colour, collector, container, journal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.unit.diagnosis.built import M1
from tests.unit.diagnosis.corpus import Case, cases, verdicts
from tests.unit.diagnosis.generations import (
    API,
    CORE,
    GENERATIONS,
    Generation,
    captured,
    failed_alone,
    failed_in_workers,
    key_values,
    loading,
    oom,
    opening,
    sampler_v1,
    sampler_v2,
    served,
)
from vllm_supervisor.diagnosis import CATALOGUE, Rank, Rule, lines
from vllm_supervisor.diagnosis.rule import When

PREFIX = re.compile(rb"(?:\x1b\[0;36m)?\((\w[\w -]*?)(?: rank=\d+)? pid=(\d+)\)(?:\x1b\[0;0m)? ")
HEADER = re.compile(rb"(DEBUG|INFO|WARNING|ERROR) (\d\d-\d\d \d\d:\d\d:\d\d) (\[[\w./]+:\d+\])")
SYSTEMD = re.compile(rb"[\w.-]+\.service[ :]|S\w+ing [\w.-]+\.service|S\w+ed [\w.-]+\.service|Suppressed |Feb ")

Dress = Callable[[list[bytes]], list[bytes]]


def each(change: Callable[[bytes], bytes]) -> Dress:
    """Dress every line for itself; systemd's lines are nobody's output."""

    def dress(log: list[bytes]) -> list[bytes]:
        return [line if SYSTEMD.match(line) else change(line.rstrip(b"\n")) + b"\n" for line in log]

    return dress


def before(wrapper: bytes) -> Dress:
    return each(lambda line: wrapper + line)


def prefixed(template: bytes) -> Dress:
    return each(lambda line: PREFIX.sub(template, line, count=1))


def terminal(line: bytes) -> bytes:
    line = PREFIX.sub(b"\x1b[0;36m(\\1 pid=\\2)\x1b[0;0m ", line, count=1)
    return HEADER.sub(b"\x1b[31m\\1\x1b[0m \x1b[90m\\2\x1b[0m \x1b[90m\\3\x1b[0m", line, count=1) + b"\r"


def short(line: bytes) -> bytes:
    found = PREFIX.match(line)
    return b"Feb 22 06:55:47 gpu01 python3.12[%s]: %s" % (found[2] if found else b"7", line)


def docker_file(line: bytes) -> bytes:
    return json.dumps(
        {"log": line.decode("utf-8", "replace") + "\n", "stream": "stdout", "time": "2025-11-19T20:16Z"}
    ).encode()


def json_formatter(line: bytes) -> bytes:
    found = re.match(rb"(?:" + PREFIX.pattern + rb")?" + HEADER.pattern + rb" ?(.*)$", line, re.DOTALL)
    if not found:
        return line
    record = {
        "asctime": "x",
        "levelname": found[3].decode(),
        "name": "vllm",
        "processName": (found[1] or b"").decode(),
        "process": int(found[2] or 1),
        "message": found[6].decode("utf-8", "replace"),
    }
    return json.dumps(record).encode()


def glued_to_a_bar(line: bytes) -> bytes:
    if b"ERROR" not in line[:90]:
        return line
    return b"\rProcessed prompts:  46%|####6     | 31/67 [00:05<00:06,  5.50it/s]" + line


DRESSES: dict[str, Dress] = {
    "terminal-colours-and-cr": each(terminal),
    "crlf": each(lambda line: line + b"\r"),
    "trailing-blanks": each(lambda line: line + b"  "),
    "engine-core-dp0": prefixed(rb"(\1_DP0 pid=\2) "),
    "worker-with-every-rank": prefixed(rb"(Worker_DP0_PP1_TP3_EP5 pid=\2) "),
    "early-workers": prefixed(rb"(VllmWorker rank=1 pid=\2) "),
    "ray-actor": prefixed(rb"(RayWorkerWrapper pid=\2, ip=10.0.0.7) "),
    "ray-in-an-actor": prefixed(rb"(APIServer pid=1) (DPEngineCoreActor pid=\2) "),
    "several-api-servers": prefixed(rb"(ApiServer_3 pid=\2) "),
    "ray-repeats": each(lambda line: line + b" [repeated 30x across cluster]" if b"WorkerProc hit" in line else line),
    "torchrun": before(b"[rank0]: "),
    "own-prefix": each(lambda line: HEADER.sub(rb"[prod-a] \1 \2 \3", line, count=1)),
    "header-of-v0": each(lambda line: re.sub(rb"(:\d\d) \[([\w.]+:\d+)\]", rb"\1 \2]", line, count=1)),
    "debug-paths": each(lambda line: re.sub(rb"\[(\w+\.py:)", rb"[v1/.../engine/\1", line, count=1)),
    "journalctl-short": each(short),
    "journalctl-short-iso": before(b"2025-11-19T20:16:36+0100 gpu01 vllm[812]: "),
    "collector": before(b"INFO 2025-11-19T20:16:36.09Z [resource.labels.containerName: vllm] "),
    "containerd": before(b"2025-11-19T20:16:36.094718273Z stdout F "),
    "docker-timestamps": before(b"2025-11-19T20:16:36.094718273Z "),
    "docker-compose": before(b"vllm-1  | "),
    "kubectl-prefix": before(b"[pod/vllm-0/vllm] "),
    "docker-json-file": each(docker_file),
    "json-formatter": each(json_formatter),
    "glued-to-a-progress-bar": each(glued_to_a_bar),
    "invalid-utf-8": each(lambda line: line + b" \xff\xfe\xc3" if len(line) > 200 else line),
    "nul": each(lambda line: line + b"\0"),
}

LOGS = [case for case in cases() if case.path.suffix == ".log"]


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES.keys())
def test_the_verdict_survives(dress: Dress):
    """Every log of the corpus gives the same rule, act and value in another dress."""
    changed = {}
    for case in LOGS:
        got = summary(dress(case.lines))
        if got != undressed(case):
            changed[case.id] = (undressed(case), got)
    assert not changed


@cache
def undressed(case: Case) -> list[tuple[object, ...]]:
    """What the log gives as it is."""
    return summary(case.lines)


def summary(log: list[bytes]) -> list[tuple[object, ...]]:
    return [(v.rule, v.act, v.tried, v.bound, v.phase, v.ready_before) if v else (None,) for v in verdicts(log)]


def as_json(log: list[bytes]) -> list[bytes]:
    """The log as `journalctl -o json` of one run would give it, as it would of another unit's text."""
    entries = []
    for number, line in enumerate(log):
        text = line.rstrip(b"\r\n \t")
        found = PREFIX.match(text)
        fields = {
            "__CURSOR": f"c{number}",
            "_TRANSPORT": "stdout",
            "_SYSTEMD_UNIT": "vllm-a.service",
            "_SYSTEMD_INVOCATION_ID": "0" * 32,
            "_PID": (found[2] if found else b"7").decode(),
            "MESSAGE": list(text) if re.search(rb"[\x00-\x1f\x80-\xff]", text) else text.decode(),
        }
        entries.append(json.dumps(fields).encode() + b"\n")
    return entries


def as_export(log: list[bytes]) -> list[bytes]:
    """The same entries as `journalctl -o export`; MESSAGE goes in binary."""
    return list(_export(as_json(log)))


def _export(entries: list[bytes]) -> Iterator[bytes]:
    for entry in entries:
        for name, value in json.loads(entry).items():
            if name == "MESSAGE":
                data = bytes(value) if isinstance(value, list) else value.encode()
                yield b"MESSAGE\n" + len(data).to_bytes(8, "little") + data + b"\n"
            else:
                yield f"{name}={value}\n".encode()
        yield b"\n"


@pytest.mark.parametrize("form", [as_json, as_export], ids=["json", "export"])
def test_the_verdict_survives_the_journal(form: Dress):
    """The journal gives what the plain text gives; what systemd says is not among these entries."""
    changed = {}
    for case in LOGS:
        log = [line for line in case.lines if not SYSTEMD.match(line)]
        want, got = summary(log), summary(form(log))
        if len(want) == 1 and want != got:
            changed[case.id] = (want, got)
    assert not changed


# -- rules by generations ----------------------------------------------------------------------------------------------

FRONT = ("bad-flag", "batched-tokens", "context-over-model", "tp-mismatch", "bad-value", "gpu-id", "architecture")
STARTING = [rule for rule in CATALOGUE if rule.rank > Rank.CONSEQUENCE and rule.when is not When.SERVING]
STARTING = [rule for rule in STARTING if "systemd" not in rule.exceptions]


def cause(rule: Rule) -> list[str]:
    """What the rule's first sample says, undressed."""
    return [line.text for part in rule.samples[0].split("\n") for line in lines(part)]


def start_that_fails(generation: Generation, rule: Rule) -> list[str]:
    """A start of this generation that fails as the rule's sample says."""
    g, said = generation, cause(rule)
    before = [*opening(g), *loading(g), *key_values(g)]
    if rule.id in FRONT:
        return [*opening(g), *g.printed(g.api, API, said)]
    if rule.id == "oom-weights":
        return [*before, *g.log(g.core, CORE, "ERROR", "gpu_model_runner.py", said[0]), *failed_alone(g, [oom()])]
    if rule.id == "crashed":
        return [*before, "Fatal Python error: Segmentation fault"]
    return [*before, *failed_alone(g, said)]


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS.keys())
@pytest.mark.parametrize("rule", STARTING, ids=lambda rule: rule.id)
def test_a_rule_in_a_generation(rule: Rule, generation: Generation):
    """Each rule is told in the shape of each generation of vLLM, one GPU, first cause and all echoes."""
    log = [line.encode() + b"\n" for line in start_that_fails(generation, rule)]
    (verdict,) = verdicts(log)
    assert verdict is not None
    assert verdict.rule == rule.id


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS.keys())
@pytest.mark.parametrize("ranks", [2, 8])
def test_the_sampler_in_a_generation(ranks: int, generation: Generation):
    """Both runners' sampler failures, every rank printing: one verdict, the value that was tried."""
    g = generation
    for raised, rule in ((sampler_v1(1024), "sampler-oom"), (sampler_v2(oom()), "sampler-oom-frames")):
        log = [
            *opening(g),
            *loading(g, ranks),
            *key_values(g, ranks),
            *captured(g, ranks),
            *failed_in_workers(g, [raised] * ranks),
        ]
        (verdict,) = verdicts([line.encode() + b"\n" for line in log])
        assert verdict is not None
        assert (verdict.rule, verdict.tried) == (rule, 1024)


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS.keys())
def test_a_quoted_sentence_in_a_generation(generation: Generation):
    """Before ready as after it, what an INFO line quotes is not evidence."""
    g = generation
    quoted = g.log(g.api, API, "INFO", "logger.py", f"Received request x: prompt: '{M1}', params: None")
    log = [*opening(g), *quoted, *loading(g), *key_values(g), *served(g), *quoted]
    assert verdicts([line.encode() + b"\n" for line in log]) == [None]


def test_every_case_names_a_rule():
    """The corpus has no directory that no rule fills."""
    assert {case.rule for case in cases()} - {rule.id for rule in CATALOGUE} == {None, "stopped", "unknown"}


def test_a_case_is_its_path():
    """Ids of the corpus are readable in a failing test."""
    assert Case(LOGS[0].path).id.endswith(".log")
