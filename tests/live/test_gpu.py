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


A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
TWO_KINDS = f"""#!/bin/sh
echo "0, {A100}, 81920, 500"
echo "1, {H100}, 81559, 500"
"""


def test_the_name_of_the_card_decides_what_its_capacity_does_not(box):
    """Runner V2 prints no number, the flag is not set: 256 is vLLM's default on an A100, 1024 on the H100 beside it.

    The batched tokens, which would tell, are the operator's.
    """
    fleet = Fleet(box)
    box.write("/usr/local/bin/nvidia-smi", TWO_KINDS, mode=0o755)
    small, large = {"SIM_GPU_NAME": A100, "SIM_OUTSIDE_GIB": 3.55}, {"SIM_GPU_NAME": H100}
    service = {**SINGLE, "arguments": {**SINGLE["arguments"], "max-num-batched-tokens": 8192}}
    fleet.configure(
        {
            "a": with_environment(service, SIM_RUNNER="v2", **small),
            "h": with_environment({**service, "gpus": [1], "port": 8001}, SIM_RUNNER="v2", **large),
        }
    )
    fleet.start_daemon()

    fleet.supervisor("apply")

    assert (fleet.steps("a")[0], fleet.steps("h")[0]) == ((256, 128), (1024, 512))
