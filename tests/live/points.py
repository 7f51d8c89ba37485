"""What an operator does, done at every point of a recovery.

The daemon does one thing after the other, and each of its steps ends in a call of `systemctl`, to look or to act. So a
`systemctl` of ours on its PATH reaches every state a recovery passes through: service `s3` has the operator's hand at
it just before the third call that concerns it after it failed, `s4` before the fourth, and all of them fail at the same
moment; a call may concern several. How many points there are is found, not listed: a recovery that ended before its
number was called had no such point.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.live.fleet import DAEMON, VLLM, Fleet
from tests.live.test_recovery import SINGLE, with_environment
from tests.sandbox import LIMIT_S, PYTHON, SUPERVISOR

SENTENCE = (
    "(EngineCore pid=7) ERROR 11-29 15:26:59 [core.py:1510] RuntimeError: CUDA out of memory occurred when warming up "
    "sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`"
)
DIES = "exit 1"
OWN = "/etc/own/$name/config.yaml"
HANGS = "exec sleep 100"

_SEEN = "/run/vllm-supervisor/seen"
_FAILED = "/run/failed"
_SHIM = f"""#!/bin/sh
names=
for word in "$@"; do
    case $word in vllm-s[0-9]*.service) name=${{word#vllm-}} names="$names ${{name%.service}}" ;; esac
done
mkdir -p {_SEEN}
# What names no unit concerns those that were named last.
case $1 in
    daemon-reload | list-jobs) names=$(cat {_SEEN}/last 2>/dev/null) ;;
    *) echo "$names" >{_SEEN}/last ;;
esac
for name in $names; do
    [ -e {_FAILED}/$((7999 + ${{name#s}})) ] || continue
    # How often something is looked at until it has come about, or is asked for again, a slow machine decides. So an act
    # is a point the first time, and a look is one as often as it is meant to be between two acts.
    case $1 in
        show) looks=2 ;;
        list-jobs) looks=1 ;;
        *) looks=0 ;;
    esac
    if [ $looks = 0 ]; then
        grep -qx "$1" {_SEEN}/$name 2>/dev/null && continue
        : >{_SEEN}/$name.looks
    else
        echo "$1" >>{_SEEN}/$name.looks
        [ "$(grep -cx "$1" {_SEEN}/$name.looks)" -le $looks ] || continue
    fi
    echo "$1" >>{_SEEN}/$name
    [ "$name" = "s$(wc -l <{_SEEN}/$name)" ] && echo >{_SEEN}/$name.done && . /opt/shim/act >&2
done
exec /usr/bin/systemctl "$@"
"""
# Leaves word that the service on this port fails.
_LEAVES_WORD = f'for word; do [ "$before" = --port ] && : >{_FAILED}/$word; before=$word; done\n'


def put_in_the_way(fleet: Fleet, shim: str) -> None:
    """Have the daemon, and nobody else, find this script as its `systemctl`."""
    fleet.box.write("/opt/shim/systemctl", shim, mode=0o755)
    path = f"/opt/shim:{SUPERVISOR.rpartition('/')[0]}:/usr/bin:/bin"
    fleet.box.write(f"/etc/systemd/system/{DAEMON}.d/shim.conf", f"[Service]\nEnvironment=PATH={path}\n")


def script(fleet: Fleet, text: str, name: str = "scripted") -> str:
    """A stand-in for `vllm` that a test writes itself; where it lies."""
    fleet.box.write(f"/opt/vllm/bin/{name}", f"#!/bin/sh\n{text}\n", mode=0o755)
    return f"/opt/vllm/bin/{name}"


def serves_at_512(fleet: Fleet, otherwise: str, *, serves: str = f'exec {VLLM} "$@"') -> str:
    """Serves at 512 sequences; at any other value it does what the text says."""
    return script(fleet, f'case "$*" in *"--max-num-seqs 512"*) {serves} ;; esac\n{otherwise}')


# While it loads, a stop request may be swallowed, as by vLLM itself, and then the stop lasts as long as it may. Whether
# it loads still when a hand comes is up to the machine, so here it ends at once in any case.
_ENDS_WHEN_TOLD = f'{VLLM} "$@" & trap "kill -KILL $!; exit 0" TERM; wait'

SAYS = f'cat >&2 <<"E"\n{SENTENCE}\nE\n'
"""Shell that prints what vLLM prints when the sampler's warm-up does not fit."""


# Waits, in the sandbox, until each of some services has a row of history that ends its recovery.
_WAIT = """
import sqlite3, sys, time
names, kinds, ends = set(sys.argv[1].split()), sys.argv[2].split(), time.monotonic() + int(sys.argv[3])
while time.monotonic() < ends:
    store = sqlite3.connect("file:/var/lib/vllm-supervisor/store.sqlite?mode=ro", uri=True)
    found = {service for service, kind in store.execute("SELECT service, kind FROM history") if kind in kinds}
    store.close()
    if names <= found:
        sys.exit()
    time.sleep(0.05)
sys.exit(f"still without an end: {names - found}")
"""
ENDS = ("started-again", "left-alone", "left-down", "reported")


class Points:
    """Services that fail together, with a hand at each at another point of its recovery.

    Args:
        act: shell, with the service in $name and its unit in $unit.
        end: what a failing start does after it said the sentence.
        until: kinds of rows of history; with one of them a service has come to its end.
        most: how many services, which must be more than there are points.
        changed: what differs in the file OWN of each service, which has that service alone.

    Attributes:
        reached: the services that an act was done to.
    """

    def __init__(
        self,
        fleet: Fleet,
        act: str,
        *,
        end: str = DIES,
        until: Sequence[str] = ENDS,
        most: int = 17,
        **changed: Any,
    ) -> None:
        self.fleet, self.names = fleet, [f"s{number}" for number in range(1, most + 1)]
        put_in_the_way(fleet, _SHIM)
        fleet.box.run(["mkdir", "--mode=1777", _FAILED], check=True)
        # However slow the machine, it is not systemd that starts them again. This drop-in is for all of them.
        fleet.box.write("/etc/systemd/system/vllm-.service.d/patient.conf", "[Service]\nRestartSec=1h\n")
        fleet.box.write("/opt/shim/act", f"unit=vllm-$name.service file=/etc/systemd/system/$unit\n{act}\n")
        roomy = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6, SIM_START_S=0.1, SIM_SHARDS=1)
        program = serves_at_512(fleet, _LEAVES_WORD + SAYS + end, serves=_ENDS_WHEN_TOLD)
        service = {**roomy, "arguments": {}, "executable": program}
        places = {name: {"gpus": [number], "port": 8000 + number} for number, name in enumerate(self.names)}
        services = {name: {**service, **place} for name, place in places.items()}
        fleet.configure(services)
        for name in self.names if changed else []:
            own = {"services": {name: {**services[name], **changed}}}
            fleet.box.write(OWN.replace("$name", name), json.dumps(own))
        fleet.start_daemon()
        fleet.supervisor("apply", "--no-wait")
        command = [PYTHON, "-S", "-c", _WAIT, " ".join(self.names), " ".join(until), str(LIMIT_S)]
        self.fleet.box.run(command, check=True, timeout=LIMIT_S + 10)
        done = fleet.box.run(["sh", "-c", f"cd {_SEEN}; echo *.done"], check=True).stdout.split()
        self.reached = [name for name in self.names if f"{name}.done" in done]
        assert len(self.reached) < most, f"no fewer points than {most}"
        assert len(self.reached) >= 6, "a look, a commit, a look, a write, a look and a reload are not all"

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """The history of each service."""
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in self.names}
        for row in json.loads(self.fleet.supervisor("history", "--json")):
            rows[row["service"]].append(row)
        return rows
