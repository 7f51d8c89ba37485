"""How long the property tests search.

In the suite each tries the same few examples every time, so that nobody's change is turned red by luck. To search for
new ones, `PROPERTIES=20 ./dev test -k properties` tries twenty times as many, and others each time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("PROPERTIES", "1"))


def searching(examples: int, *, steps: int = 50) -> settings:
    """Settings for a property test, or for a state machine of so many steps at most."""
    return settings(
        max_examples=examples * TIMES,
        stateful_step_count=steps,
        deadline=None,
        derandomize=TIMES == 1,
        suppress_health_check=list(HealthCheck),  # a busy machine is slow
    )
