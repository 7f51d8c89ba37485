"""Many at once, and many in a row; `./dev bench load` and `./dev bench endurance` do more of the same."""

from __future__ import annotations

import json

from tests.faults import fault
from tests.live.fleet import DAEMON, Fleet
from tests.sandbox import SUPERVISOR, endurance, standin

TOGETHER = 8
CALLS = "/run/vllm-supervisor/calls"

LEAK_KIB = 200
"""What each recovery would have to leave behind to be seen here; half of it is allowed. In its first thousand
recoveries the allocator takes up to 17 MiB that it goes on using, up to 43 KiB for each of these eighty."""


@fault(
    "8 services fail their warm-up in the same moment",
    made="each start waits before its last words until all have come so far",
    promised="every one ends ready at its value after one step; systemd reloads less often than there are services",
)
def test_services_that_fail_together(box, seen):
    """They are taken care of together, and none is forgotten."""
    count = f'#!/bin/sh\necho "$1" >>{CALLS}\nexec /usr/bin/systemctl "$@"\n'
    box.write("/opt/counting/systemctl", count, mode=0o755)
    path = f"/opt/counting:{SUPERVISOR.rpartition('/')[0]}:/usr/bin:/bin"
    box.write(f"/etc/systemd/system/{DAEMON}.d/count.conf", f"[Service]\nEnvironment=PATH={path}\n")
    fleet = Fleet(box)
    standin.install(box)
    fleet.start_daemon()
    names = [f"s{number}" for number in range(TOGETHER)]
    fleet.configure({name: standin.service(number, fits=512) for number, name in enumerate(names)})
    standin.make_barrier(box)
    fleet.supervisor("apply", "--no-wait")
    standin.wait_for_arrival(box, TOGETHER)

    standin.open_barrier(box)

    box.wait_until(lambda: standin.all_ready(box, names), "all ready")
    rows = json.loads(fleet.supervisor("history", "--json"))
    lowered = sorted((row["service"], row["tried"], row["to"]) for row in rows if row["kind"] == "lowered")
    assert lowered == [(name, 1024, 512) for name in names]
    assert {(row["condition"], row["effective"]) for row in fleet.status().values()} == {("ready", 512)}
    assert box.read(CALLS).split().count("daemon-reload") < TOGETHER
    seen("each ready at 512 after one step, 1024 to 512; fewer reloads than services")


@fault(
    "80 recoveries in a row",
    made="8 services fail at every value but 1, again and again with other settings",
    promised="the same descriptors and threads as before, and no memory kept for each",
)
def test_recoveries_leave_nothing_behind(box, seen):
    """What the daemon holds does not grow with what it has done."""
    found = endurance.rounds(Fleet(box), 120, services=8, steps=5)

    warm, last = found[0], found[-1]
    assert (last.daemon.descriptors, last.daemon.threads) == (warm.daemon.descriptors, warm.daemon.threads)
    assert endurance.growth(found) < LEAK_KIB / 2, [row.daemon for row in found]
    seen("descriptors and threads as before; memory grew by less than 100 KiB for each")
