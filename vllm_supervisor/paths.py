"""Where things are on a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SUPERVISOR_UNIT = "vllm-supervisor.service"


@dataclass(frozen=True, slots=True)
class Paths:
    """Every place we read or write, in one value.

    Attributes:
        config: what the operator writes; `conf.d/*.yaml` beside it belongs to it.
        units: where systemd looks for units of the administrator.
        state: our StateDirectory=, 0700.
        lock: held while units are changed.
        control: socket at which operators without root are answered.
    """

    config: Path = Path("/etc/vllm-supervisor/config.yaml")
    units: Path = Path("/etc/systemd/system")
    state: Path = Path("/var/lib/vllm-supervisor")
    lock: Path = Path("/run/vllm-supervisor/lock")
    control: Path = Path("/run/vllm-supervisor/control")

    @property
    def store(self) -> Path:
        """The sqlite file."""
        return self.state / "store.sqlite"

    @property
    def flags(self) -> Path:
        """What each vLLM of this host answered when it was asked for its flags; may be removed at any time."""
        return self.state / "flags"
