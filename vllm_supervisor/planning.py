"""What `apply` would do: what the YAML and what was learned ask for, held against what is there. Touches nothing.

Over 300 lines, since what a plan holds and what it is made from are read together.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from vllm_supervisor import arguments, config, inforce, salvage, unit_files, units
from vllm_supervisor.config import Configuration, Problem, Service
from vllm_supervisor.errors import PermissionDeniedError
from vllm_supervisor.host import clock, files, systemd
from vllm_supervisor.host.systemd import UnitState
from vllm_supervisor.paths import Paths
from vllm_supervisor.store import AppliedService, LearnedCap, Store, Task, TaskKind


class Verb(StrEnum):
    """What happens to a unit file."""

    CREATE = "create"
    UPDATE = "update"
    KEEP = "keep"
    REMOVE = "remove"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Change:
    """What `apply` would do about one unit.

    Attributes:
        name: the service.
        unit: name of its unit.
        verb: what happens to the file.
        start: whether the unit is then started, or restarted if it runs.
        diff: unified diff of the file, "" when it stays as it is.
        notes: sentences the operator should read.
        there: text of the file when it was looked at; None where there was none.
        in_force: whether the daemon goes by the same settings already; not all of them stand in the unit.
        runs: whether its main process is there now.
        failed: it is down, nobody stopped it, and it is not started again.
    """

    name: str
    unit: str
    verb: Verb
    start: bool = False
    diff: str = ""
    notes: tuple[str, ...] = ()
    there: str | None = None
    in_force: bool = True
    runs: bool = False
    failed: bool = False

    @property
    def changes(self) -> bool:
        """Whether anything on the host would change."""
        if self.verb is Verb.REFUSE:
            return False
        return self.start or not self.in_force or self.verb is not Verb.KEEP


@dataclass(frozen=True, slots=True)
class Standing:
    """What an `apply` leaves in the store, so that another one can tell that it was here.

    Attributes:
        in_force: services as they were last applied.
        promised: starts that were promised and not carried out yet, by service.
    """

    in_force: Mapping[str, AppliedService] = field(default_factory=dict)
    promised: Mapping[str, Task] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything `apply` would do, and all it needs to do it.

    Attributes:
        changes: one for each unit, sorted by service.
        problems: of the configuration; the services concerned are left as they are.
        texts: unit text by file name, for every service that can be rendered.
        applied: what would then be in force, by service.
        reload: systemd has not yet read a file that is there.
        answers: what vLLMs answered that were asked for their flags, by the file to keep it in.
        standing: what it was made from.
    """

    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]
    texts: Mapping[str, str]
    applied: Mapping[str, AppliedService]
    reload: bool
    answers: Mapping[Path, str]
    standing: Standing

    @property
    def anything(self) -> bool:
        """Whether anything on the host would change."""
        return self.reload or any(change.changes for change in self.changes)

    def of(self, *verbs: Verb) -> list[Change]:
        """The changes of some kinds."""
        return [change for change in self.changes if change.verb in verbs]

    @property
    def summary(self) -> str:
        """One line: `1 to create, 1 to update, 3 unchanged; to start: a; to restart: b`."""
        verbs = [change.verb for change in self.changes]
        words = {
            Verb.CREATE: "to create",
            Verb.UPDATE: "to update",
            Verb.REMOVE: "to remove",
            Verb.KEEP: "unchanged",
            Verb.REFUSE: "refused",
        }
        parts = [f"{verbs.count(verb)} {word}" for verb, word in words.items() if verb in verbs]
        if not parts:
            return "no service can be used as it is written" if self.problems else "no services"
        starts = {
            word: [change.name for change in self.changes if change.start and change.runs is runs]
            for word, runs in (("start", False), ("restart", True))
        }
        return "; ".join(
            [", ".join(parts), *(f"to {word}: {', '.join(names)}" for word, names in starts.items() if names)]
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """What the store says.

    Attributes:
        caps: of the services as they would be rendered now.
        given_up: services that are left down as they were applied before.
        standing: what was applied before.
    """

    caps: Mapping[str, LearnedCap] = field(default_factory=dict)
    given_up: frozenset[str] = frozenset()
    standing: Standing = field(default_factory=Standing)


def plan(paths: Paths, tell: Callable[[str], None]) -> Plan:
    """Look at everything, touch nothing.

    Args:
        paths: where things are.
        tell: is given a sentence before something that takes a while.

    Raises:
        ConfigError: there is no configuration to read.
        HostError: systemd does not answer, or a unit file cannot be read.
        StoreError: the store is there and cannot be read.
        PermissionDeniedError: only root may see what was applied here.
    """
    configuration = config.load(paths.config, guarded=os.geteuid() == 0)
    services = configuration.services
    versions = {name: files.vllm_version(service.executable) for name, service in services.items()}
    applied = {name: _applied(service, versions[name]) for name, service in services.items()}
    known = _known(paths, applied)
    caps = {name: cap for name, learned in known.caps.items() if (cap := inforce.unit_cap(learned))}
    texts = units.render_all(services, caps, inforce.this_host(), versions)
    stale = _stale(paths, configuration, texts, known)
    states = systemd.show([*texts, *stale])
    changes = [_change(paths, item, texts[item.unit], states[item.unit], known) for item in applied.values()]
    checked = arguments.check(paths, [services[c.name] for c in changes if c.changes], versions, tell)
    changes = [_after_check(change, checked) for change in changes] + [_removal(paths, unit) for unit in stale]
    found = map(configuration.problem, checked.complaints)
    return Plan(
        changes=tuple(sorted(changes, key=lambda change: change.name)),
        problems=tuple(dict.fromkeys([*configuration.problems, *found])),  # one in the defaults concerns many services
        texts=texts,
        applied=applied,
        reload=any(state.needs_reload for state in states.values()),
        answers=checked.answers,
        standing=known.standing,
    )


def _applied(service: Service, vllm_version: str | None) -> AppliedService:
    unit, fingerprint = units.unit_name(service.name), units.fingerprint(service, vllm_version)
    return AppliedService(service.name, unit, service.model_dump_json(), fingerprint, clock.realtime_us())


def _known(paths: Paths, applied: Mapping[str, AppliedService]) -> _Known:
    try:
        if not paths.store.exists() or not paths.store.stat().st_size:
            shown = {name: salvage.shown_cap(paths, name, item.fingerprint) for name, item in applied.items()}
            return _Known({name: cap for name, cap in shown.items() if cap})
    except PermissionError as e:
        raise PermissionDeniedError(f"cannot look into {paths.state}: {e.strerror}") from e
    store = Store(paths.store, read_only=True)
    caps = {name: cap for name, item in applied.items() if (cap := store.cap(name, item.fingerprint))}
    before = standing(store)
    in_force = {name: store.cap(name, item.fingerprint) for name, item in before.in_force.items()}
    known = _Known(caps, frozenset(name for name, cap in in_force.items() if cap and cap.exhausted), before)
    store.close()
    return known


def standing(store: Store) -> Standing:
    """What was applied before, as the store has it now."""
    promised = {name: task for name, task in store.tasks().items() if task.kind is TaskKind.START}
    return Standing(store.services(), promised)


def _stale(paths: Paths, configuration: Configuration, texts: Mapping[str, str], known: _Known) -> list[str]:
    """Units of ours whose service left the YAML: from this configuration, its file not broken.

    They are told by their header or, where somebody removed the unit file, by what is in force.
    """
    gone = [item for item in known.standing.in_force.values() if not (paths.units / item.unit).exists()]
    sources = {item.unit: Path(json.loads(item.spec)["source"]) for item in gone}
    for path in paths.units.glob("vllm-*.service"):
        if header := units.header(files.read_text(path) or ""):
            sources[path.name] = Path(header.source)
    return [
        unit
        for unit, source in sorted(sources.items())
        if unit not in texts
        and (source == paths.config or source.parent == paths.config.parent / "conf.d")
        and source not in configuration.broken
    ]


def _change(paths: Paths, item: AppliedService, text: str, state: UnitState, known: _Known) -> Change:
    path = paths.units / item.unit
    there = files.read_text(path)
    if there is not None and units.header(there) is None:
        note = f"{path} was not written by us and is left alone: move it away, or rename the service"
        return Change(item.name, item.unit, Verb.REFUSE, notes=(note,), there=there)
    verb = Verb.CREATE if there is None else Verb.KEEP if there == text else Verb.UPDATE
    before = known.standing.in_force.get(item.name)
    in_force = before is not None and replace(before, applied_us=item.applied_us) == item
    failed = state.active_state == "failed" or (state.active_state == "inactive" and item.name in known.given_up)
    start = (
        item.name in known.standing.promised
        or there is None
        or _starts(state, there, text, failed=failed, again=not in_force)
    )
    notes = _notes(state, failed=failed and not start, start=start)
    if verb is Verb.KEEP and not in_force:
        notes = (*notes, "its unit stays as it is; settings that only vllm-supervisor goes by change")
    return Change(
        item.name,
        item.unit,
        verb,
        start,
        _diff(path, there or "", text),
        notes,
        there,
        in_force,
        runs=bool(state.main_pid),
        failed=failed and not start,
    )


def _starts(state: UnitState, there: str, text: str, *, failed: bool, again: bool) -> bool:
    """Whether a unit that was applied before is started, or restarted, by applying it again.

    Args:
        state: of the unit.
        there: its text on the disk.
        text: what it is to be.
        failed: it is down, and nobody stopped it.
        again: something about the service changed, if only settings that the unit does not show.
    """
    if state.sub_state == "start" and not state.needs_reload:  # Type=exec: its program is not there to be looked at
        return units.run_hash(there) != units.run_hash(text)
    if state.main_pid:
        return not unit_files.runs(state.main_pid, text)
    if state.active_state == "inactive" and not failed:
        return False  # somebody stopped it
    if not state.wanted_by_operator:
        return False
    return units.run_hash(there) != units.run_hash(text) or (failed and again)


def _after_check(change: Change, checked: arguments.Checked) -> Change:
    """A service whose arguments its vLLM would refuse is left as it is, running or not."""
    if any(complaint.service.name == change.name for complaint in checked.complaints):
        return replace(change, verb=Verb.REFUSE, start=False, diff="", notes=())
    if reason := checked.unchecked.get(change.name):
        return replace(change, notes=(*change.notes, f"its arguments were not checked: {reason}"))
    return change


def _notes(state: UnitState, *, failed: bool, start: bool) -> tuple[str, ...]:
    notes = [
        f"{drop_in} replaces ExecStart=: that command runs, and no remedy can reach it"
        for drop_in in state.drop_ins
        if unit_files.replaces_command(files.read_text(Path(drop_in)) or "")
    ]
    if failed:
        again = f"`systemctl reset-failed {state.name} && systemctl start {state.name}`"
        notes.append(f"it failed before, and nothing changed: `vllm-supervisor explain` tells why; {again} tries again")
    elif not state.wanted_by_operator and state.load_state == "loaded" and not start:
        notes.append(f"it is disabled and stays so: `systemctl enable --now {state.name}` starts it")
    elif state.active_state == "inactive" and not start:
        notes.append(f"it is stopped and stays so: `systemctl start {state.name}` starts it")
    return tuple(notes)


def _removal(paths: Paths, unit: str) -> Change:
    there = files.read_text(paths.units / unit)
    diff = _diff(paths.units / unit, there or "", "")
    return Change(units.service_name(unit), unit, Verb.REMOVE, diff=diff, there=there)


def _diff(path: Path, there: str, wanted: str) -> str:
    before, after = there.splitlines(keepends=True), wanted.splitlines(keepends=True)
    old, new = str(path) if there else "/dev/null", str(path) if wanted else "/dev/null"
    return "".join(difflib.unified_diff(before, after, old, new))
