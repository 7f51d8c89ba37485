"""Whole configurations that are right by construction, as somebody may ask for them, and ways to write them down."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from tests.live.test_quoting import NASTY
from vllm_supervisor.config import Service, load

PIECES = [piece for piece in NASTY if piece != "\r"]
TEXTS = st.lists(
    st.sampled_from([*PIECES, "a", "0", "/", "--flag", "true", "1e5", "null"]), min_size=1, max_size=6
).map("".join)
VALUES = TEXTS | st.just("")
ITEMS = TEXTS.filter(lambda text: not text.startswith("-"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.sampled_from([0.5, 1e-05, 2.0]) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS: Mapping[str, st.SearchStrategy[Any]] = {
    "max-model-len": st.integers(1, 10**6),
    "gpu-memory-utilization": st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    "enable-prefix-caching": st.booleans(),
    "disable-log-stats": st.booleans(),
    "chat-template": VALUES,
    "dtype": st.just("bfloat16"),
    "seed": st.integers(-5, 5),
    "served-model-name": TEXTS | st.lists(ITEMS, min_size=1, max_size=3),
    "middleware": st.lists(ITEMS, min_size=1, max_size=3),
    "allowed-origins": st.lists(ITEMS, min_size=1, max_size=3),
    "hf-overrides": st.dictionaries(TEXTS, JSON, min_size=1, max_size=3),
    "compilation-config.cudagraph_mode": VALUES,
    "compilation-config.sizes": st.lists(st.integers(1, 9), min_size=1, max_size=3),
}
REMEDIATION = {
    "enabled": st.booleans(),
    "floor": st.integers(1, 8),
    "max_attempts": st.integers(1, 64),
    "gpu_memory_utilization": st.fixed_dictionaries({"floor": st.just(0.5)}, optional={"step": st.just(0.05)}),
    "max_model_len": st.fixed_dictionaries({"floor": st.integers(1, 9999)}),
    "enforce_eager": st.booleans(),
}
SETTINGS = st.fixed_dictionaries(
    {"model": TEXTS.filter(lambda text: text.strip() and not text.startswith("-"))},
    optional={
        "executable": st.sampled_from(["/opt/vllm/bin/vllm", "/srv/v@1.0_x+y/vllm"]),
        "environment": st.dictionaries(st.sampled_from(["A", "PATH", "VLLM_X", "_b9", "HOME"]), VALUES, max_size=4),
        "credentials": st.dictionaries(
            st.sampled_from(["HF_TOKEN", "vllm.yaml"]), st.sampled_from(["/etc/s", "/etc/100% $x;'\"é/t"]), max_size=2
        ),
        "host": st.sampled_from(["127.0.0.1", "::1", "0.0.0.0", "gpu-1.example"]),
        "max_num_seqs": st.integers(8, 4096),
        "arguments": st.fixed_dictionaries({}, optional=ARGUMENTS),
        "remediation": st.fixed_dictionaries({}, optional=REMEDIATION),
        "start_timeout": st.integers(1, 604800),
    },
)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,10}", fullmatch=True).filter(lambda name: name != "supervisor")


@st.composite
def configurations(draw: st.DrawFn, most: int = 3) -> dict[str, Any]:
    """The whole file as data; services have ports and GPUs of their own, as two on one host must."""
    names = draw(st.lists(NAMES, min_size=1, max_size=most, unique=True))
    services = {}
    for number, name in enumerate(names):
        services[name] = {**draw(SETTINGS), "port": 8000 + number, "gpus": draw(gpus(number))}
    return {"defaults": {"executable": "/opt/vllm/bin/vllm"}, "services": services}


def gpus(number: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(8 * number, 8 * number + 3)).flatmap(
        lambda order: st.integers(1, 3).map(lambda many: order[:many])
    )


class Writer(yaml.SafeDumper):
    """PyYAML's, with one style for texts: it reads some words otherwise than we do, so none of them is left bare."""

    text_style = '"'


def _text(writer: Writer, text: str) -> yaml.Node:
    bare = re.fullmatch("[a-z_-]{4,}", text) and text not in ("true", "null", "false")
    # Between other quotes PyYAML writes NEL as it is, and reads it as the end of a line.
    style = None if bare else writer.text_style if text.isprintable() else '"'
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Writer.add_representer(str, _text)


def written(asked: Mapping[str, Any], style: str) -> str:
    """As YAML: `json`, or `flow` or `block` with the quotes for texts behind it."""
    if style == "json":
        text = json.dumps(asked, ensure_ascii=False, indent=1)
        return "".join(char if char.isprintable() or char == "\n" else f"\\u{ord(char):04x}" for char in text)
    kind, quotes = style[:-1], style[-1]
    writer = type("Styled", (Writer,), {"text_style": quotes})
    return yaml.dump(asked, Dumper=writer, default_flow_style=kind == "flow", sort_keys=False, allow_unicode=True)


STYLES = st.sampled_from(["json", 'flow"', "flow'", 'block"', "block'", "block|", "block>"])


def taken(text: str, directory: Path) -> dict[str, Service]:
    """The services of that file; there must be no problem with it."""
    path = directory / "config.yaml"
    path.write_text(text, encoding="utf-8")
    configuration = load(path)
    assert not configuration.problems, "\n".join([*map(str, configuration.problems), text])
    return dict(configuration.services)


def reversed_order(value: Any) -> Any:
    """The same with every mapping the other way round."""
    if isinstance(value, dict):
        return {key: reversed_order(value[key]) for key in reversed(value)}
    return [reversed_order(item) for item in value] if isinstance(value, list) else value


def as_words(value: Any) -> Any:
    """An argument as it must arrive: what was a number is its digits, JSON is compared as what it means."""
    if isinstance(value, bool | str | dict):
        return value
    return [as_words(item) for item in value] if isinstance(value, list) else json.dumps(value)
