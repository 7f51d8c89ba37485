"""GPU memory around a restart. There is no GPU here: `nvidia-smi` is a script, and nothing else is pretended."""

from __future__ import annotations

from tests.live.fleet import VLLM, Fleet
from tests.live.test_recovery import SINGLE, with_environment

STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"
# Memory comes back over three seconds after the last process of the unit is gone, as a driver may take to return it.
NVIDIA_SMI = """#!/bin/sh
gone=/run/vllm-supervisor/gone
if pgrep -u vllm >/dev/null; then echo "0, NVIDIA H100 80GB HBM3, 81559, 78000"; exit; fi
[ $gone -nt /var/lib/vllm/started ] || touch $gone
age=$(( $(date +%s%3N) - $(date -r $gone +%s%3N) ))
[ $age -gt 3000 ] && age=3000
echo "0, NVIDIA H100 80GB HBM3, 81559, $(( 78000 - age * 25 ))"
"""


def test_the_next_start_waits_until_the_memory_is_back_and_steady(box):
    """A start right after a kill would find the memory taken, and look like another failure."""
    fleet = Fleet(box)
    box.write("/usr/local/bin/nvidia-smi", NVIDIA_SMI, mode=0o755)
    marks = "open('/var/lib/vllm/started', 'w').close()"
    box.write(VLLM, box.read(VLLM).replace("\nimport", f"\n{marks}\nimport"), mode=0o755)
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4)})
    fleet.start_daemon()

    fleet.supervisor("apply")

    entries = box.journal("--unit=vllm-a.service")
    starts = [int(entry["__REALTIME_TIMESTAMP"]) for entry in entries if entry.get("MESSAGE_ID") == STARTING]
    errors = [int(e["__REALTIME_TIMESTAMP"]) for e in entries if "with 1024 dummy requests" in str(e.get("MESSAGE"))]
    assert box.read("/var/lib/vllm/started") == ""
    assert len(starts) == 2
    assert starts[1] - errors[0] > 3_000_000


def test_the_name_of_the_card_decides_what_its_capacity_does_not(box):
    """Runner V2 prints no number and the flag is not set: on an A100 vLLM's default is 256, so 128 is next."""
    fleet = Fleet(box)
    smi = '#!/bin/sh\necho "0, NVIDIA A100-SXM4-80GB, 81920, 500"\n'
    box.write("/usr/local/bin/nvidia-smi", smi, mode=0o755)
    quiet = {"SIM_RUNNER": "v2", "SIM_GPU_NAME": "NVIDIA A100-SXM4-80GB", "SIM_OUTSIDE_GIB": 3.55}
    fleet.configure({"a": with_environment(SINGLE, **quiet)})
    fleet.start_daemon()

    fleet.supervisor("apply")

    assert fleet.steps("a")[0] == (256, 128)
