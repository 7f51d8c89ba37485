"""YAML as a tree that knows its lines, read by rules without surprises.

PyYAML does the scanning and nothing else. What a plain scalar means follows YAML 1.2: only `true` and `false` are
switches, `12:30` and `2024-01-01` are text, `017` is text and not 15. The words that YAML 1.1 took for switches (`yes`,
`no`, `on`, `off`) are refused where they are bare, since half of the readers would take them for the one and half for
the other. A number keeps the digits it was written with: a revision `1e10` or a version `1.10` must reach vLLM so.

Anchors, aliases and tags are refused: `defaults:` does what they are used for, and without them a small file cannot
become a large one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import yaml

from vllm_supervisor.redact import redact

MAX_BYTES = 1 << 20  # a thousand services fit; a log file or a weight shard given by mistake does not
MAX_DEPTH = 20  # the deepest JSON argument of vLLM has five levels

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]{1,30}|(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{0,30})?)(?:[eE][-+]?[0-9]{1,2})?")
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_SWITCH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_YAML_1_1_SWITCH = re.compile(r"(?i:yes|no|on|off)")
_SHOWN = 60  # characters of a value that a message repeats


class WrittenInt(int):
    """An integer whose `str()` is what the operator wrote."""

    written: str

    def __new__(cls, written: str) -> WrittenInt:
        """Take the digits as they stand in the file."""
        self = super().__new__(cls, written)
        self.written = written
        return self

    def __str__(self) -> str:
        return self.written


class WrittenFloat(float):
    """A float whose `str()` is what the operator wrote."""

    written: str

    def __new__(cls, written: str) -> WrittenFloat:
        """Take the digits as they stand in the file."""
        self = super().__new__(cls, written)
        self.written = written
        return self

    def __str__(self) -> str:
        return self.written


Scalar: TypeAlias = bool | WrittenInt | WrittenFloat | str | None


@dataclass(frozen=True, slots=True)
class Node:
    """One value of the file.

    Attributes:
        value: a scalar, the items of a list, or the entries of a mapping in the file's order.
        line: 1-based; for an entry of a mapping the line of its key.
    """

    value: Scalar | tuple[Node, ...] | Mapping[str, Node]
    line: int

    def plain(self) -> object:
        """The same value as Python's own lists and dicts."""
        if isinstance(self.value, tuple):
            return [item.plain() for item in self.value]
        if isinstance(self.value, Mapping):
            return {key: item.plain() for key, item in self.value.items()}
        return self.value

    def shown(self) -> str:
        """The value for a message: numbers as written, shortened; not what is in a mapping, which may be a secret."""
        if isinstance(self.value, tuple):
            text = f"[{', '.join(item.shown() for item in self.value)}]"
        elif isinstance(self.value, Mapping):
            text = "{…}"
        elif isinstance(self.value, WrittenInt | WrittenFloat):
            text = str(self.value)
        else:
            text = redact(json.dumps(self.value, ensure_ascii=False))
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong with the YAML itself: `path` leads to it, the rest is as in `Problem`."""

    line: int | None
    path: tuple[str, ...]
    value: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A file's tree, and all that is wrong with its YAML. `root` is None if it is empty or cannot be read at all."""

    root: Node | None
    flaws: tuple[Flaw, ...]


def parse(text: str) -> Document:
    """Read one YAML document. Never raises: whatever is wrong is among the flaws."""
    builder = _Builder(yaml.parse(text, Loader=yaml.SafeLoader))
    try:
        root = builder.document()
    except _StopReading:
        root = None
    except yaml.MarkedYAMLError as e:
        root = None
        builder.flaws.append(_syntax_error(e))
    except yaml.YAMLError as e:  # a character YAML forbids
        root = None
        position = getattr(e, "position", None)
        line = None if position is None else text.count("\n", 0, position) + 1
        builder.flaws.append(Flaw(line, (), "", f"not YAML: {getattr(e, 'reason', e)}"))
    return Document(root, tuple(builder.flaws))


def _syntax_error(error: yaml.MarkedYAMLError) -> Flaw:
    mark = error.problem_mark or error.context_mark
    what = ", ".join(part for part in (error.context, error.problem) if part)
    hint = "indent with spaces, never with tabs" if "'\\t'" in what else ""
    return Flaw(mark.line + 1 if mark else None, (), "", f"not YAML: {what}", hint)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


class _StopReading(Exception):  # noqa: N818 - it carries no news: the flaw is already recorded
    """The rest of the document is not worth reading."""


class _Builder:
    """Turns PyYAML's events into nodes, keeping a list of flaws."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self.flaws: list[Flaw] = []
        self._events = events

    def document(self) -> Node | None:
        """The tree of the only document, None for an empty file."""
        next(self._events)  # stream start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        root = self._node(next(self._events), ())
        next(self._events)  # document end
        after = next(self._events)
        if isinstance(after, yaml.DocumentStartEvent):
            self._flaw(after, (), "a second document begins here", "keep one document in a file: remove the `---`")
        return root

    def _flaw(self, event: yaml.Event, path: tuple[str, ...], message: str, hint: str = "", value: str = "") -> None:
        self.flaws.append(Flaw(_line(event), path, value, message, hint))

    def _node(self, event: yaml.Event, path: tuple[str, ...]) -> Node:
        self._check(event, path)
        line = _line(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(tuple(self._items(path)), line)
        if isinstance(event, yaml.MappingStartEvent):
            return Node(self._entries(path), line)
        assert isinstance(event, yaml.ScalarEvent)  # noqa: S101 - for the type checker: nothing else is left
        return Node(self._scalar(event, path), line)

    def _check(self, event: yaml.Event, path: tuple[str, ...]) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._flaw(event, path, "an alias (`*name`)", "write the value out, or put it under `defaults:`")
            raise _StopReading
        if getattr(event, "anchor", None):
            self._flaw(event, path, "an anchor (`&name`)", "remove it; `defaults:` holds what services share")
        if (tag := getattr(event, "tag", None)) not in (None, "!"):
            self._flaw(event, path, f"a tag ({tag})", "remove it; quotes make a text")
        if len(path) > MAX_DEPTH:
            self._flaw(event, path[:3], f"more than {MAX_DEPTH} levels deep")
            raise _StopReading

    def _items(self, path: tuple[str, ...]) -> Iterator[Node]:
        index = 0
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._node(event, (*path, str(index)))
            index += 1

    def _entries(self, path: tuple[str, ...]) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._flaw(event, path, "a key that is a list or a mapping", "quote the value if it begins with { or [")
                raise _StopReading
            self._check(event, (*path, event.value))
            node = self._node(next(self._events), (*path, event.value))
            if event.value in entries:
                first = entries[event.value].line
                self._flaw(event, (*path, event.value), f"given twice, first in line {first}", "keep one of them")
            else:
                entries[event.value] = Node(node.value, _line(event))
        return entries

    def _scalar(self, event: yaml.ScalarEvent, path: tuple[str, ...]) -> Scalar:
        text: str = event.value
        if event.style:  # quoted, or a block: text, whatever it looks like
            return text
        if _YAML_1_1_SWITCH.fullmatch(text):
            hint = f"write true or false, or '{text}' in quotes if the text is meant"
            self._flaw(event, path, "a switch for some readers of YAML and a text for others", hint, value=text)
        if text in _NULL:
            return None
        if text in _SWITCH:
            return _SWITCH[text]
        if _INT.fullmatch(text):
            return WrittenInt(text)
        return WrittenFloat(text) if _FLOAT.fullmatch(text) else text
