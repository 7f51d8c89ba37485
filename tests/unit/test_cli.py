"""The command line as a person or a script meets it: output, exit codes, and what is loaded for a command."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_supervisor import errors
from vllm_supervisor.cli import COMMANDS, main

CLONE = Path(__file__).parents[2]
CORPUS = CLONE / "tests/corpus"
SAMPLER = next((CORPUS / "sampler-oom").glob("*0.32.0*1024*.log"))
HEALTHY = next((CORPUS / "none").glob("*0.32.0*ok.log"))


def classify(capsys, *arguments):
    code = main(["classify", "--json", *map(str, arguments)])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    """One sentence at least, and exit code 0."""
    assert main([command, "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


def test_classify_answers_with_the_fields_a_script_needs(capsys):
    """One object: what, where, what would be done, and the line that tells."""
    code, told = classify(capsys, SAMPLER)

    assert code == 10
    assert (told["diagnosis"], told["phase"], told["ready_before"]) == ("sampler-oom", "warm-up", False)
    assert told["remedy"] == {"act": "lower", "tried": 1024, "to": 512}
    assert told["evidence_complete"] is True
    assert told["findings"][0].keys() >= {"rule", "line", "quote"}
    assert told["quote"] in SAMPLER.read_text()


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--floor", "600"], {"act": "lower", "tried": 1024, "to": 600}),
        (["--floor", "1024"], {"act": "report", "tried": 1024, "to": None}),
        (["--declared", "2048"], {"act": "lower", "tried": 1024, "to": 512}),
    ],
)
def test_classify_takes_what_a_log_cannot_know(capsys, options, remedy):
    """Floor and declared value are the operator's."""
    assert classify(capsys, *options, SAMPLER)[1]["remedy"] == remedy


def test_classify_finds_nothing_in_a_healthy_log(capsys):
    """Exit code 0, no diagnosis, nothing to do."""
    code, told = classify(capsys, HEALTHY)

    assert (code, told["diagnosis"], told["remedy"]["act"], told["ready_before"]) == (0, None, "none", True)


def test_classify_keeps_runs_apart(capsys, tmp_path):
    """A loop in one file is as many runs; the last one decides."""
    log = tmp_path / "loop.log"
    log.write_bytes(SAMPLER.read_bytes() + HEALTHY.read_bytes())

    code, told = classify(capsys, log)

    assert [run["diagnosis"] for run in told["runs"]] == ["sampler-oom", None]
    assert (code, told["diagnosis"]) == (0, None)


def test_classify_reads_standard_input():
    """As a script pipes a journal into it."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm_supervisor", "classify", "-"], input=SAMPLER.read_bytes(), capture_output=True
    )

    assert done.returncode == 10
    assert b"would do: lower to 512" in done.stdout
    assert b"\x1b" not in done.stdout


def test_classify_of_a_missing_file_is_one_line(capsys):
    """It names the file."""
    assert main(["classify", "/no/such.log"]) == 2
    assert "/no/such.log" in capsys.readouterr().err


def test_rules_and_explain(capsys):
    """Every rule is listed, and each can be explained; a misspelt one gets a hint."""
    assert main(["rules", "--json"]) == 0
    rules = json.loads(capsys.readouterr().out)
    assert {"sampler-oom", "mamba-blocks"} <= {rule["rule"] for rule in rules}
    for rule in rules:
        assert main(["classify", "--explain", rule["rule"]]) == 0
        told = capsys.readouterr().out
        assert rule["title"] in told
        assert rule["advice"] in told
        assert "{" not in rule["advice"]
        assert "[[" not in rule["advice"]
    advice = next(rule["advice"] for rule in rules if rule["rule"] == "mamba-blocks")
    assert advice == "set max-num-seqs to at most *fits_seqs*, or raise gpu-memory-utilization"
    assert main(["classify", "--explain", "sampler-oon"]) == 78
    assert "sampler-oom" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error(capsys):
    """Exit code 2, as every command line has it."""
    assert main(["appli"]) == 2
    assert "appli" in capsys.readouterr().err


def test_an_expected_failure_has_no_traceback(capsys, monkeypatch):
    """Not root: one line and a hint."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    assert main(["apply"]) == 77
    assert capsys.readouterr().err.startswith("vllm-supervisor: cannot ")


@pytest.mark.parametrize("command", ["gate", "run"])
def test_what_runs_for_long_or_often_loads_little(command):
    """The gate runs once for each start, the daemon always: neither needs what draws tables."""
    code = (
        f"import sys; from vllm_supervisor.cli import main; main(['{command}', '--help']);"
        "import vllm_supervisor.daemon;"
        "print([m for m in ('rich', 'vllm_supervisor.simulator') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stderr.strip() == "[]"


def kinds(error=errors.SupervisorError):
    """An error and all that are derived from it."""
    return [error, *(kind for derived in error.__subclasses__() for kind in kinds(derived))]


def test_the_readme_lists_every_exit_code():
    """Those of errors.py, each once, and the acts of `classify` by name."""
    text = (CLONE / "README.md").read_text()
    rows = {int(code): row for code, row in re.findall(r"^\| (\d+) \| (.*)$", text, re.MULTILINE)}

    named = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    assert sorted(rows) == sorted(named | {kind.exit_code for kind in kinds()} | set(errors.CLASSES.values()))
    assert [act for act, code in errors.CLASSES.items() if f"`{act}`" not in rows[code]] == []


def test_no_command_ends_in_a_code_of_its_own():
    """But for 0, exit codes are written down in errors.py and nowhere else."""
    found = []
    for path in (CLONE / "vllm_supervisor/cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Return) else None
            if isinstance(value, ast.Constant) and type(value.value) is int and value.value:
                found.append(f"{path.name}:{node.lineno}")

    assert found == []
