"""Dependencies point down only, and the house stays small: read from the source, nothing is imported or run."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[1]
PACKAGE = "vllm_supervisor"
FUNCTION_LINES, MEDIAN_LINES, MODULE_LINES = 50, 12, 300

# What each place at the bottom may import of ours besides itself.
MAY_IMPORT = {
    "errors": set[str](),
    "paths": set[str](),
    "simulator": set[str](),
    "learned": set[str](),
    "redact": set[str](),
    "trust": {"errors"},
    "programs": {"errors"},
    "config": {"errors", "redact", "trust"},
    "remedy": {"config", "diagnosis", "learned"},
    "diagnosis": {"errors", "redact"},
    "units": {"config", "errors", "learned"},
    "store": {"errors", "learned", "trust"},
    "host": {"errors", "programs"},
}
# The middle, from the ground up: the loop, plan and apply, and what these share. What stands on one floor imports from
# the floors under it and from the bottom, and nothing from its own.
FLOORS = (
    {"inforce", "unit_files", "our_daemon", "arguments", "damage", "follow", "glance"},
    {"recovery", "observe", "pausing"},
    {"recoveries", "judgement", "explain"},
    {"salvage"},
    {"daemon", "planning"},
    {"apply"},
    {"cli"},
    {"__main__"},
)
PURE = {"remedy", "diagnosis", "units", "redact"}
# What reaches the world, the clock or chance; `pathlib` is not here, since naming a path touches nothing.
IMPURE = set(
    """
    asyncio datetime fcntl http io logging multiprocessing os psutil random secrets select shutil signal socket sqlite3
    subprocess sys systemd tempfile threading time urllib
    """.split()  # noqa: SIM905 - one name a line would fill a screen
)
IMPURE_BUILTINS = {"input", "open", "print"}
IMPURE_METHODS = {"exists", "is_file", "open", "read_bytes", "read_text", "stat", "write_bytes", "write_text"}


def module_name(path: Path) -> str:
    parts = path.relative_to(CLONE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted((CLONE / PACKAGE).rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(), str(path)) for name, path in SOURCES.items()}


def imports(name: str) -> Iterator[str]:
    """Every module that a module imports, wherever in it, as a full dotted name."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{SOURCES[name]}:{node.lineno}: imports are written in full"
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in SOURCES else base


def ours(name: str) -> set[str]:
    return {module for module in imports(name) if module.split(".")[0] == PACKAGE}


def place(module: str) -> str:
    """The first part below the package; the package itself, which holds the version, is the empty place."""
    return module.split(".")[1] if "." in module else ""


def functions(tree: ast.AST) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    """Each function with its lines, docstring and decorators not counted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = ast.get_docstring(node) is not None
            docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            yield node, (node.end_lineno or 0) - node.lineno + 1 - docstring


def impure_calls(name: str) -> Iterator[str]:
    """Calls that reach files or the terminal without any import."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=called) if called in IMPURE_BUILTINS:
                    yield called
                case ast.Attribute(attr=called) if called in IMPURE_METHODS:
                    yield called


def modules(*places: str) -> list[str]:
    return [name for name in SOURCES if place(name) in places]


def below() -> dict[str, set[str]]:
    """What each place may import."""
    allowed, known = dict(MAY_IMPORT), {*MAY_IMPORT} - {"simulator"}
    for floor in FLOORS:
        allowed |= {name: set(known) for name in floor}
        known |= floor
    return allowed


def test_imports_point_down() -> None:
    """A module imports only from the places below its own."""
    allowed = below()
    bad = {
        name: {to for to in ours(name) if place(to) not in allowed.get(place(name), set()) | {place(name), ""}}
        for name in SOURCES
    }

    assert {name: up for name, up in bad.items() if up} == {}


def test_host_files_do_not_know_each_other() -> None:
    known = {name: {to for to in ours(name) if place(to) == "host"} - {name} for name in modules("host")}

    assert {name: others for name, others in known.items() if others} == {}


def test_commands_reach_the_host_through_the_layer_below() -> None:
    """Neither systemd nor the journal is a command's business."""
    direct = (f"{PACKAGE}.host.systemd", f"{PACKAGE}.host.journal", "systemd")

    assert [
        (name, to)
        for name in modules("cli")
        for to in imports(name)
        if f"{to}.".startswith(tuple(f"{d}." for d in direct))
    ] == []


def test_decisions_touch_nothing() -> None:
    """Same input, same output: no I/O, no clock, no log, no chance."""
    assert [(name, to) for name in modules(*PURE) for to in imports(name) if to.split(".")[0] in IMPURE] == []
    assert [(name, called) for name in modules(*PURE) for called in impure_calls(name)] == []


def test_no_import_goes_in_circles() -> None:
    try:
        TopologicalSorter({name: ours(name) - {name} for name in SOURCES}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_functions_are_short() -> None:
    """None is over 50 lines, and half are under 12: then each can be read as one thought."""
    lengths = {
        f"{SOURCES[name].relative_to(CLONE)}:{node.lineno} {node.name}": lines
        for name, tree in TREES.items()
        for node, lines in functions(tree)
    }

    assert {where: lines for where, lines in lengths.items() if lines > FUNCTION_LINES} == {}
    assert statistics.median(lengths.values()) < MEDIAN_LINES


def test_a_long_module_says_why() -> None:
    """Its docstring has a sentence with "over 300 lines"."""
    long = [name for name, path in SOURCES.items() if len(path.read_text().splitlines()) > MODULE_LINES]

    assert [
        name for name in long if f"over {MODULE_LINES} lines" not in (ast.get_docstring(TREES[name]) or "").lower()
    ] == []
