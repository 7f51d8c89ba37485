"""From files to services, with every problem of every file at once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from vllm_supervisor import trust
from vllm_supervisor.config import checks
from vllm_supervisor.config.checks import Complaint
from vllm_supervisor.config.document import MAX_BYTES, Node, parse
from vllm_supervisor.config.explain import explained, nearest
from vllm_supervisor.config.merge import Merged, Source, merge
from vllm_supervisor.config.model import Service
from vllm_supervisor.config.problem import Problem
from vllm_supervisor.errors import ConfigError

MAX_SERVICES = 1000  # far more than any host runs; services are compared in pairs


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the files say.

    Attributes:
        services: by name, sorted; only those of files without any problem.
        problems: everything to mend, in the order of files and lines.
        broken: files whose services were left out. What was rendered from them earlier must stay as it is.
        places: by service, where each of its values came from.
    """

    services: Mapping[str, Service]
    problems: tuple[Problem, ...]
    broken: frozenset[Path]
    places: Mapping[str, _Accepted] = field(default_factory=dict, compare=False, repr=False)

    def problem(self, complaint: Complaint) -> Problem:
        """What is wrong with one of the services, found later than on reading, at the line to blame for it."""
        at = self.places[complaint.service.name]
        return at.merged.problem(complaint.key, complaint.message, complaint.hint, at.entry)


def load(path: Path, *, guarded: bool = False) -> Configuration:
    """Read `path` and the `conf.d/*.yaml` beside it.

    The `defaults:` of `path` hold for the services of every file; files under conf.d have none of their own. A file
    with any problem is left out whole, so that a half-finished edit is never half-applied; the other files go on. If
    the defaults cannot be read, no service can be rendered as it was meant, and all files are left out.

    Args:
        path: the main file.
        guarded: refuse files that somebody besides root may write to. Meant for whoever acts on them as root.

    Raises:
        ConfigError: `path` cannot be opened or trusted, the directory beside it cannot be listed, or there are more
            than `MAX_SERVICES`.
    """
    found = _Findings(guarded)
    if not str(path).isprintable():  # it stands in the header of units, and in messages
        raise ConfigError(f"cannot use {str(path)!a}: its name holds what cannot be shown", hint="rename it")
    try:
        if guarded:
            trust.check_directories(path)
        text = _text(path, found)
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}", hint="name another file with --config") from e
    files = {path: _top(path, text, found, main=True)}
    for file in _conf_d(path, found):
        try:
            files[file] = _top(file, _text(file, found), found, main=False)
        except OSError as e:
            found.add(Problem(file, None, "", "", e.strerror or str(e)))
    defaults = _mapping(path, "defaults", files[path], found)
    entries = [entry for file, top in files.items() for entry in _services(file, top, found)]
    if len(entries) > MAX_SERVICES:
        raise ConfigError(f"cannot use {path}: {len(entries)} services, of {MAX_SERVICES} at the most")
    complete = not found.beyond_services(path)
    if not complete:
        found.broken.update(files)
    accepted = [accepted for entry in entries if (accepted := _accept(entry, defaults, found, complete=complete))]
    _compare(accepted, found)
    return found.configuration(accepted)


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A service that is sound by itself, and where its values came from."""

    service: Service
    merged: Merged
    entry: Source


@dataclass(slots=True)
class _Findings:
    """Problems so far, each once, and the files that must be left out."""

    guarded: bool
    problems: dict[Problem, None] = field(default_factory=dict)
    broken: set[Path] = field(default_factory=set)

    def add(self, problem: Problem) -> None:
        self.problems[problem] = None
        self.broken.add(problem.file)

    def beyond_services(self, main: Path) -> bool:
        """Whether `main` has a problem outside its services, so that its defaults may not be what was meant."""
        return any(p.file == main and p.key.split(".")[0] != "services" for p in self.problems)

    def configuration(self, accepted: list[_Accepted]) -> Configuration:
        usable = {a.service.name: a for a in accepted if a.service.source not in self.broken}
        return Configuration(
            MappingProxyType({name: usable[name].service for name in sorted(usable)}),
            tuple(sorted(self.problems, key=lambda p: (str(p.file), p.line or 0))),
            frozenset(self.broken),
            usable,
        )


def _text(file: Path, found: _Findings) -> str | None:
    """The text of a file; None, with the problem noted, if it is none that can be used. Raises OSError."""
    with open(file, "rb", opener=_without_waiting) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            found.add(Problem(file, None, "", "", "it is a pipe or a device", "name a plain file"))
            return None
        if found.guarded and (why := trust.distrusted(status)):
            found.add(Problem(file, None, "", "", why, trust.way_out(file)))
            return None
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        found.add(Problem(file, None, "", "", f"it is larger than {MAX_BYTES >> 20} MiB", "is it the right file?"))
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        found.add(Problem(file, line, "", "", "it is not UTF-8", "save it as UTF-8"))
        return None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # for somebody to write to a pipe, say


def _conf_d(main: Path, found: _Findings) -> Iterator[Path]:
    directory = main.parent / "conf.d"
    try:
        if not directory.exists():
            return
        if found.guarded:
            trust.check_directories(directory / "_.yaml")
        entries = sorted(directory.iterdir())
    except OSError as e:
        raise ConfigError(f"cannot list {directory}: {e.strerror}") from e
    for entry in entries:
        if entry.suffix == ".yml":
            found.add(Problem(entry, None, "", "", "only *.yaml is read here", "rename it to .yaml"))
        elif entry.suffix == ".yaml" and not entry.name.startswith("."):
            if entry.name.isprintable():
                yield entry
            else:
                found.add(Problem(entry, None, "", "", "its name holds what cannot be shown", "rename it"))


def _top(file: Path, text: str | None, found: _Findings, *, main: bool) -> Node | None:
    """The root of a file if it is a mapping; its unknown keys are noted."""
    if text is None:
        return None
    document = parse(text)
    for flaw in document.flaws:
        found.add(Problem(file, flaw.line, ".".join(flaw.path), flaw.value, flaw.message, flaw.hint))
    root = document.root
    if root is None or root.value is None:
        return None
    if not isinstance(root.value, Mapping):
        found.add(Problem(file, root.line, "", root.shown(), "not a mapping", "begin with `services:`"))
        return None
    known = ["defaults", "services"] if main else ["services"]
    for key, node in root.value.items():
        if key not in known:
            elsewhere = f"put them into {file.parent.parent / 'config.yaml'}"
            hint = elsewhere if key == "defaults" else nearest(key, known)
            found.add(Problem(file, node.line, key, node.shown(), "no such key in this file", hint))
    return root


def _mapping(file: Path, key: str, top: Node | None, found: _Findings) -> Source | None:
    """The mapping under a top-level key; None if it is absent or empty, or (noted) something else."""
    node = top.value.get(key) if top and isinstance(top.value, Mapping) else None
    if node is None or node.value is None:
        return None
    if isinstance(node.value, Mapping):
        return Source(file, key, node)
    found.add(Problem(file, node.line, key, node.shown(), "not a mapping", "write `KEY: VALUE` lines under it"))
    return None


def _services(file: Path, top: Node | None, found: _Findings) -> Iterator[Source]:
    services = _mapping(file, "services", top, found)
    if services is None or not isinstance(services.node.value, Mapping):
        return
    for name, node in services.node.value.items():
        if isinstance(node.value, Mapping):
            yield Source(file, f"services.{name}", node)
        else:
            message, hint = "not a mapping", "write the service's keys under it, indented"
            found.add(services.problem((name,), node, message, hint, node.shown()))


def _accept(entry: Source, defaults: Source | None, found: _Findings, *, complete: bool) -> _Accepted | None:
    """The service if it is sound by itself; otherwise its problems are noted and its file is left out.

    Args:
        entry: the service's mapping.
        defaults: what it builds on.
        found: takes the problems.
        complete: whether the defaults are known; if not, a missing key is no news.
    """
    name = entry.key.removeprefix("services.")
    merged = merge(defaults, entry)
    problems = list(merged.problems)
    service = None
    try:
        service = Service.model_validate({**merged.data, "name": name, "source": entry.file})
    except ValidationError as e:
        for error in explained(e):
            if complete or not error.absent:
                path = () if error.path == ("name",) else error.path
                problems.append(merged.problem(path, error.message, error.hint, entry, secret=error.secret))
    else:
        problems += [merged.problem(c.key, c.message, c.hint, entry) for c in checks.within(service)]
    for problem in problems:
        found.add(problem)
    if problems or service is None:
        found.broken.add(entry.file)  # also where the problem stands in the defaults, which are in another file
        return _Accepted(service, merged, entry) if service else None
    return _Accepted(service, merged, entry)


def _compare(accepted: list[_Accepted], found: _Findings) -> None:
    """Note what two services cannot both have. Both files are left out: neither may take what the other runs on."""
    by_place = {(a.service.source, a.service.name): a for a in accepted}
    for c in checks.between([a.service for a in accepted]):
        at = by_place[c.service.source, c.service.name]
        found.add(at.merged.problem(c.key, c.message, c.hint, at.entry))
        found.broken.update(service.source for service in (c.service, *c.others))
