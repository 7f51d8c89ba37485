"""What the crash harness does inside a sandbox, each in one go: `inside.py COMMAND [ARGUMENTS]`.

A program of its own, without a line of the project's code: what judges the store must not be what wrote it.

    keep ARCHIVE              keep the store and the units
    restore ARCHIVE UNIT ...  put them back, with these units down and the journal read up to now
    settle STARTS SECONDS     wait until all that is in force serves and nothing is left to be done, then look
    look                      print everything that a crash may have an effect on, as JSON
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

UNITS, STATE, TRACES = Path("/etc/systemd/system"), Path("/var/lib/vllm-supervisor"), Path("/run/crash")
STORE = STATE / "store.sqlite"
DAEMON = "vllm-supervisor.service"
LOWERED = "c64f81b259cf4702b9255e8a80c72750"  # units/vllm-supervisor.catalog
STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"  # SD_MESSAGE_UNIT_STARTING of sd-messages.h
SQLITES_OWN = ("-wal", "-shm")  # beside a store that is open
GRACE_S = 0.5  # in which the last effects come about, after all that can be waited for


def systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], capture_output=True, text=True).stdout


def _ours() -> list[Path]:
    return [path for place in ("vllm-*", ".vllm-*", "*.wants/vllm-*") for path in UNITS.glob(place)]


def keep(archive: str) -> None:
    there = [str(path.relative_to("/")) for path in [*_ours(), STATE] if path.exists()]
    subprocess.run(["tar", "-C", "/", "-cf", archive, "--files-from=-"], input="\n".join(there), text=True, check=True)


def restore(archive: str, *units: str) -> None:
    systemctl("stop", DAEMON)
    if units:
        systemctl("kill", "--signal=KILL", *units)
        systemctl("stop", *units)
    for path in [*_ours(), STATE, TRACES]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    systemctl("reset-failed")
    systemctl("daemon-reload")  # which forgets the units, and what their last runs were
    subprocess.run(["tar", "-C", "/", "-xf", archive], check=True)
    systemctl("daemon-reload")
    TRACES.mkdir()
    subprocess.run(["journalctl", "--sync"], check=True)
    shown = subprocess.run(["journalctl", "-n1", "-q", "--show-cursor"], capture_output=True, text=True, check=True)
    cursor = shown.stdout.rpartition("-- cursor: ")[2].strip()
    (TRACES / "cursor").write_text(cursor)
    if STORE.exists():
        with sqlite3.connect(STORE) as store:
            store.execute("REPLACE INTO meta VALUES ('cursor', ?)", (cursor,))


def settle(starts: str, seconds: str) -> dict[str, Any]:
    deadline_s, settled_s = time.monotonic() + float(seconds), 0.0
    while time.monotonic() < deadline_s:
        if not _settled():
            settled_s = 0.0
        elif not starts or died() >= int(starts):
            break
        else:
            settled_s = settled_s or time.monotonic()
            if time.monotonic() - settled_s > GRACE_S:
                break
        time.sleep(0.02)
    return {**look(), "timed_out": time.monotonic() >= deadline_s}


def died() -> int:
    """How often systemd had to start the daemon again."""
    return int(systemctl("show", "--value", "-p", "NRestarts", DAEMON) or 0)


def _settled() -> bool:
    tables = _store()["tables"]
    if tables.get("tasks") or not tables.get("services"):
        return False
    units = [row["unit"] for row in tables["services"]]
    states = _show([*units, *([DAEMON] if (UNITS / f"{DAEMON}.d").exists() else [])])
    if any((state["ActiveState"], state["SubState"]) != ("active", "running") for state in states.values()):
        return False
    ready = {row["invocation"] for row in tables["history"] if row["kind"] == "ready"}
    return DAEMON not in states or all(states[unit]["InvocationID"] in ready for unit in units)


def look() -> dict[str, Any]:
    units = {path.name: path.read_text() for path in UNITS.glob("vllm-*.service") if path.name != DAEMON}
    states = _show(sorted(units))
    return {
        "units": units,
        "states": states,
        "environments": {name: _environment(state["MainPID"]) for name, state in states.items()},
        "files": sorted(str(path) for path in _files() if not path.name.endswith(SQLITES_OWN)),
        "died": died(),
        "daemon": systemctl("show", "--value", "-p", "MainPID", DAEMON).strip(),
        "said": _said(),
        "starts": _starts(),
        "traces": {path.name: path.read_text() for path in TRACES.glob("trace.*")},
        **_store(),
    }


def _files() -> list[Path]:
    return [
        *_ours(),
        *STATE.rglob("*"),
        *Path("/run/vllm-supervisor").rglob("*"),
    ]


def _show(units: list[str]) -> dict[str, dict[str, str]]:
    if not units:
        return {}
    properties = "ActiveState,SubState,MainPID,InvocationID,UnitFileState,NeedDaemonReload,Job"
    blocks = systemctl("show", "-p", properties, "--", *units).split("\n\n")
    states = [dict(line.split("=", 1) for line in block.splitlines()) for block in blocks]
    return dict(zip(units, states, strict=True))


def _said() -> dict[str, int]:
    """How often the journal tells of each lowering, by invocation."""
    subprocess.run(["journalctl", "--sync"])
    rows = _store()["tables"].get("history", [])
    lowered = [row["invocation"] for row in rows if row["kind"] == "lowered"]
    return {run: len(_entries(f"MESSAGE_ID={LOWERED}", f"VLLM_SUPERVISOR_INVOCATION={run}")) for run in lowered}


def _starts() -> list[str]:
    """The units that were started since the beginning, one for each start."""
    try:
        since = f"--after-cursor={(TRACES / 'cursor').read_text()}"
    except OSError:
        return []  # the host was started since
    units = [entry["UNIT"] for entry in _entries(f"MESSAGE_ID={STARTING}", since)]
    return sorted(unit for unit in units if unit.startswith("vllm-") and unit != DAEMON)


def _entries(*terms: str) -> list[dict[str, Any]]:
    told = subprocess.run(["journalctl", "-q", "-o", "json", *terms], capture_output=True, text=True).stdout
    return [json.loads(line) for line in told.splitlines()]


def _environment(pid: str) -> dict[str, str]:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _store() -> dict[str, Any]:
    if not STORE.exists() or not STORE.stat().st_size:
        return {"tables": {}, "integrity": "ok"}
    try:
        store = sqlite3.connect(f"file:{STORE}?mode=ro", uri=True, timeout=10)
        store.row_factory = sqlite3.Row
        known = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        names = [row[0] for row in store.execute(known)]
        return {
            "tables": {
                name: [dict(r) for r in store.execute(f"SELECT * FROM {name} ORDER BY rowid")] for name in names
            },
            "integrity": store.execute("PRAGMA integrity_check").fetchone()[0],
        }
    except sqlite3.Error as e:  # a transaction that was cut short is undone by whoever opens it to write
        return {"tables": {}, "integrity": str(e)}


if __name__ == "__main__":
    said = {"keep": keep, "restore": restore, "settle": settle, "look": look}[sys.argv[1]](*sys.argv[2:])
    if said is not None:
        print(json.dumps(said))
