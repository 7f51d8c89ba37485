"""A hostile text in every place of the YAML: refused, or in the unit as that text and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests import hostile
from vllm_supervisor.config import Service
from vllm_supervisor.units import Cap, Host, render

HOST = Host(252, ("/opt/vllm-supervisor/bin/vllm-supervisor",))
# What a service's own values decide of which settings there are.
OPTIONAL = {"Group", "RemoveIPC", "LoadCredential", "Environment"}


def unit(service: dict[str, Any], cap: Cap | None = None) -> str:
    return render(Service.model_validate(service), cap, HOST, fingerprint="0" * 16, after=[])


def shape(text: str) -> list[str]:
    """Which settings there are, in order, as systemd cuts a file into lines."""
    joined = re.sub(r"(?m)^\s*[#;].*\n", "", text).replace("\\\n", " ")
    lines = [line for line in re.split(r"[\n\r\0]", joined) if line]
    return [key for line in lines if (key := line.partition("=")[0]) not in OPTIONAL]


@pytest.mark.parametrize("name", hostile.TEXTS)
def test_no_text_adds_a_setting(name: str) -> None:
    """Whatever is taken gives the settings that the example gives, no others."""
    expected = shape(unit(hostile.example()))
    taken = []
    for place, service in hostile.placed(hostile.TEXTS[name]):
        try:
            text = unit(service)
        except ValidationError:
            continue
        taken.append(place)
        if not place.startswith(("hardening", "the key hardening")):
            assert shape(text) == expected, place

    # JSON has an escape for each of them, and a path is refused where it is read.
    written = [place for place in taken if not re.search(r" as | in a path|^source|-config\.", place)]
    assert bool(written) is (name not in {"line-break", "carriage-return", "nul", "surrogate", "too-long"})
    assert name != "too-long" or {*taken} <= {"source", "source in a path"}


@pytest.mark.parametrize("name", hostile.TEXTS)
def test_no_name_of_a_service_leaves_its_directory(name: str) -> None:
    """Nor is one that looks like another, or that of our own unit, taken."""
    text = hostile.TEXTS[name]
    for wanted in (text, f"a/{text}", f"{text}.service", "..", "a/b", "a@b", "supervisor", "A", "a" * 49):
        with pytest.raises(ValidationError):
            unit({**hostile.example(), "name": wanted})


@pytest.mark.parametrize("name", [name for name in hostile.TEXTS if name != "surrogate"])
def test_a_quoted_log_line_and_a_path_stay_comments(name: str) -> None:
    """What a service printed becomes the reason in a comment; the source is refused earlier if it cannot be shown."""
    text = hostile.TEXTS[name]
    service = hostile.example()

    made = unit({**service, "source": Path(f"/etc/{text}.yaml")}, Cap({"max-num-seqs": 8}, f"because of {text}"))

    assert shape(made) == shape(unit(service))
    assert all(line.isprintable() for line in made.split("\n"))


def test_no_user_is_given_the_directory_of_the_store() -> None:
    """Systemd hands StateDirectory= over to the unit's user."""
    with pytest.raises(ValidationError, match="is this tool's own"):
        unit({**hostile.example(), "user": "supervisor"})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("User", "root"), ("ExecStartPre", "+/bin/sh"), ("ProtectHome", "no\nUser=root"), ("ProtectHome", True),
        ("CapabilityBoundingSet", "CAP_SYS_ADMIN\nUser=root"), ("UMask", "0%n"), ("LockPersonality", "no"),
        ("SystemCallFilter", "a;b"), ("ProtectSystem", ""), ("UMask", 18), ("NoNewPrivileges", None),
    ],
)  # fmt: skip
def test_loosening_reaches_nothing_else(setting: str, value: object) -> None:
    with pytest.raises(ValidationError):
        unit({**hostile.example(), "hardening": {setting: value}})


def test_a_variable_of_the_loader_reaches_nothing_of_roots() -> None:
    """`Environment=` holds for ExecStartPre= too, which is run by root; it would load what the variable names."""
    variables = {"LD_PRELOAD": "/var/lib/vllm/x.so", "GCONV_PATH": "/x", "GLIBC_TUNABLES": "y", "LD_X": "a b"}
    text = unit({**hostile.example(), "environment": {**variables, "LDX": "1"}})

    assert not re.search(r"(?m)^Environment=.*(LD_|GCONV|GLIBC)", text)
    assert "ExecStart=/usr/bin/env GCONV_PATH=/x GLIBC_TUNABLES=y LD_PRELOAD=/var/lib/vllm/x.so" in text
    assert "Environment=LDX=1" in text
