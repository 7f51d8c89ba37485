"""One service's values out of its entry and the defaults, each with the place it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllm_supervisor.config import flags
from vllm_supervisor.config.document import Node
from vllm_supervisor.config.problem import Problem
from vllm_supervisor.redact import MASK

MERGED = (
    "environment",
    "credentials",
    "arguments",
    "hardening",
    "remediation",
)  # entry by entry; every other key is replaced whole


@dataclass(frozen=True, slots=True)
class Source:
    """A mapping of settings in a file.

    Attributes:
        file: where it stands.
        key: the way to it, `defaults` or `services.NAME`.
        node: the mapping.
    """

    file: Path
    key: str
    node: Node

    def problem(self, path: tuple[str, ...], node: Node | None, message: str, hint: str, value: str = "") -> Problem:
        """A problem with the value at `path` in this mapping; `node` (or the mapping itself) gives the line."""
        return Problem(self.file, (node or self.node).line, ".".join((self.key, *path)), value, message, hint)


@dataclass(frozen=True, slots=True)
class Merged:
    """The values of one service.

    Attributes:
        data: as the models take them.
        origins: path of each value -> (mapping it came from, path in that mapping, node).
        problems: what merging found.
    """

    data: dict[str, object] = field(default_factory=dict)
    origins: dict[tuple[str, ...], tuple[Source, tuple[str, ...], Node]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(
        self, path: tuple[str, ...], message: str, hint: str, entry: Source, *, secret: bool = False
    ) -> Problem:
        """The problem with what stands at `path`: at the nearest value that was written, at `entry` if none was."""
        for end in range(len(path), 0, -1):
            if origin := self.origins.get(path[:end]):
                source, written, node = origin
                shown = MASK if secret or _may_be_a_secret(path, node) else node.shown()
                return source.problem((*written, *path[end:]), node, message, hint, shown)
        return entry.problem(path, None, message, hint)


def _may_be_a_secret(path: tuple[str, ...], node: Node) -> bool:
    """Whether what stands there may be a secret that somebody put in the wrong place."""
    if len(path) == 1 and path[0] in MERGED:  # a list or a text of NAME=SECRET, as docker has it
        return isinstance(node.value, tuple | str)
    return path[0] == "credentials" and not str(node.value).startswith("/")  # itself, in place of its file


def merge(defaults: Source | None, entry: Source) -> Merged:
    """Put `entry` over `defaults`. A null under a merged mapping takes back what the defaults set there."""
    merged = Merged()
    for source in (defaults, entry):
        if source is not None:
            for key, node in _settings(source):
                _put(merged, source, key, node)
    return merged


def _settings(source: Source) -> Iterator[tuple[str, Node]]:
    assert isinstance(source.node.value, Mapping)  # noqa: S101 - the caller has looked
    return iter(source.node.value.items())


def _put(merged: Merged, source: Source, key: str, node: Node) -> None:
    if key not in MERGED or not isinstance(node.value, Mapping):
        if not (key in MERGED and node.value is None):  # `environment:` with nothing under it adds nothing
            merged.data[key] = node.plain()
            merged.origins[(key,)] = (source, (key,), node)
        return
    into = merged.data.setdefault(key, {})
    if isinstance(into, dict):  # otherwise the defaults hold something else there, and the problem is theirs
        merged.origins[(key,)] = (source, (key,), node)
        for name, written, child in _children(merged, source, key, node.value):
            _put_child(merged, source, (key, name), (key, written), child, into)


def _put_child(
    merged: Merged, source: Source, path: tuple[str, str], written: tuple[str, str], node: Node, into: dict[str, object]
) -> None:
    if node.value is None and path in merged.origins:
        del into[path[1]], merged.origins[path]
    else:
        into[path[1]] = node.plain()
        merged.origins[path] = (source, written, node)


def _children(
    merged: Merged, source: Source, key: str, children: Mapping[str, Node]
) -> Iterator[tuple[str, str, Node]]:
    """The entries as (name, name as written, node); flags under the one name that vLLM gives them."""
    seen: dict[str, str] = {}
    for written, node in children.items():
        name = flags.normal(written) if key == "arguments" else written
        if name in seen:
            message = f"the same flag as `{seen[name]}`, which is given too"
            merged.problems.append(source.problem((key, written), node, message, "keep one of them"))
        else:
            seen[name] = written
            yield name, written, node
