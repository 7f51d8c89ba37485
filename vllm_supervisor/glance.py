"""How the host is at this moment, asked once for all units that are being worked on.

To look just before each act is right, and a call for each look is dear where sixty-four units fail in the same moment:
one call looks at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from vllm_supervisor.host import gpu, systemd
from vllm_supervisor.host.systemd import UnitState


class Glance:
    """What was seen since the last `renew`; what is never asked for is never looked at.

    Raises:
        HostError: systemd does not answer.
    """

    def __init__(self) -> None:
        self.renew(())

    def renew(self, units: Iterable[str]) -> None:
        """Forget what was seen; from now on a look at one of these units takes in all of them."""
        self._units = set(units)
        self._states: dict[str, UnitState] = {}
        self._jobs: dict[str, str] | None = None
        self._used_mib: dict[int, int] | None = None

    def state(self, unit: str) -> UnitState:
        """How a unit is."""
        if unit not in self._states:
            self._states |= systemd.show(sorted({unit, *self._units} - self._states.keys()))
        return self._states[unit]

    def job(self, unit: str) -> str:
        """Type of the job that is queued or running for a unit, "" for none."""
        if self._jobs is None:
            self._jobs = systemd.jobs()
        return self._jobs.get(unit, "")

    def used_mib(self) -> dict[int, int]:
        """GPU memory in use, in MiB, by index."""
        if self._used_mib is None:
            self._used_mib = {index: card.used_mib for index, card in gpu.read().items()}
        return self._used_mib
