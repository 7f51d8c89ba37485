"""What can be learned of a service: values of flags of `vllm serve`, over those that its operator declared."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Flag(StrEnum):
    """A flag that a remedy may set, as vLLM spells it.

    One that is added here takes an entry in the store's `MIGRATIONS`, if only an empty one: a program that does not
    know the flag then refuses the store instead of taking it for damaged.
    """

    MAX_NUM_SEQS = "max-num-seqs"
    GPU_MEMORY_UTILIZATION = "gpu-memory-utilization"
    MAX_MODEL_LEN = "max-model-len"
    ENFORCE_EAGER = "enforce-eager"


Values = Mapping[str, float]
"""By flag: sequences, a share of each GPU's memory (0 to 1), tokens, True for a switch that is given. A flag that
nobody set is not there."""


def checked(values: Mapping[str, object]) -> Values:
    """The same values.

    Raises:
        ValueError: no remedy of this version can have set them.
    """
    found = dict[str, float]()
    for flag, value in values.items():
        if not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"--{flag} {value} was never learned")
        found[Flag(flag)] = value
    return found
