"""What to do about a failed start: pure, total, and the only place that chooses a value.

One event about one service comes in, one `Step` goes out: the next state, at most one action, and the sentence that
says why. Nothing here reads a clock, a file or the journal, and nothing here raises.

`max-num-seqs` is what the program is for. The other flags are touched only where the operator opened them, each within
a bound, and each in one direction only: so no remedy undoes another's, and every chain of failures ends.
"""

from __future__ import annotations

from vllm_supervisor.remedy.decide import CURES, decide, event
from vllm_supervisor.remedy.model import (
    Action,
    DidNotFit,
    Event,
    Failed,
    GiveUp,
    Relaunch,
    Report,
    Served,
    State,
    Step,
    Wait,
    Withhold,
)

__all__ = [
    "CURES",
    "Action",
    "DidNotFit",
    "Event",
    "Failed",
    "GiveUp",
    "Relaunch",
    "Report",
    "Served",
    "State",
    "Step",
    "Wait",
    "Withhold",
    "decide",
    "event",
]
