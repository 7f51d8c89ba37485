"""Texts that mean something to some parser, and every place of the YAML to put them.

The places are walked in the example that shows every key, which a test holds to be whole: a new key is covered without
being named here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

EXAMPLE = Path(__file__).parents[1] / "packaging/examples/every-key.yaml"
SETTING = "ExecStartPre=+/bin/touch /run/owned"

TEXTS = {
    "line-break": f"x\n{SETTING}",
    "carriage-return": f"x\r{SETTING}",
    "nul": f"x\0{SETTING}",
    "unicode-line-breaks": f"x\u2028{SETTING}\u2029{SETTING}\x85{SETTING}\x0b{SETTING}\x0c{SETTING}",
    "specifier": "%n %H %% %",
    "variable": "$HOME ${HOME} $$",
    "semicolon": "x ; /bin/touch /run/owned",
    "quotes": '"x\' "',
    "continuation": "x\\",
    "escape": "x\\n[Service]\\x0a" + SETTING,
    "section": "[Service]",
    "comment": "#x",
    "prefixes": "+/x",
    "at": "@/x y",
    "bang": "!!/x",
    "dash": "-x",
    "dots": "/../../etc/passwd",
    "blanks": " x  y ",
    "empty": "",
    "long": "x" * 99_000,
    "too-long": "x" * 2_000_000,
    "look-alike": "\u0430\uff0e\uff0e\u2215\u202e\ufeff",
    "surrogate": "\ud800",
    "terminal": "\x1b]0;x\x07\x9b2J",
}


def example() -> dict[str, Any]:
    """The service of the example, with its name."""
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    ((name, service),) = document["services"].items()
    return {**document["defaults"], **service, "name": name, "source": "/etc/vllm-supervisor/config.yaml"}


def placed(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The example with the text in place of each value and of each key, and in each shape that a value may have."""
    whole = example()
    for path in _paths(whole):
        where = ".".join(map(str, path))
        shapes = {
            "": text,
            " in a path": f"/x{text}",
            " as item": [text],
            " as entry": {"k": text},
            " as key": {text: "k"},
        }
        for shape, value in shapes.items():
            changed = copy.deepcopy(whole)
            inner = _at(changed, path[:-1])
            inner[path[-1]] = value
            yield f"{where}{shape}", changed
        if isinstance(path[-1], str):
            changed = copy.deepcopy(whole)
            inner = _at(changed, path[:-1])
            inner[text] = inner.pop(path[-1])
            yield f"the key {where}", changed


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


def _paths(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield (*above, key)
        yield from _paths(child, (*above, key))
