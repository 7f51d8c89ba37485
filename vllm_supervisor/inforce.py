"""What `apply` last put in force, and the unit text that follows from it and from what was learned since.

The daemon renders from here and never from the YAML: a file that somebody is editing at midnight changes nothing until
it is applied, and a remedy changes one number and nothing else.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from vllm_supervisor import units
from vllm_supervisor.config import Remediation, Service
from vllm_supervisor.errors import HostError, StoreError
from vllm_supervisor.host import systemd
from vllm_supervisor.remedy import Bounds, Flag, State, Values
from vllm_supervisor.store import AppliedService, LearnedCap, Store


@dataclass(frozen=True, slots=True)
class InForce:
    """One service in force: the row it came from, and the validated service."""

    applied: AppliedService
    service: Service

    @property
    def unit(self) -> str:
        """Name of its unit."""
        return self.applied.unit


def services(store: Store) -> dict[str, InForce]:
    """Every service in force, by name, sorted.

    Raises:
        StoreError: one of them is not as this version of the program writes them.
    """
    return {name: InForce(applied, _service(store, applied)) for name, applied in store.services().items()}


def _service(store: Store, applied: AppliedService) -> Service:
    try:
        return Service.model_validate_json(applied.spec)
    except ValidationError as e:
        raise StoreError(
            f"cannot use what {store.path} holds of services.{applied.name}: another version of this program wrote it",
            hint="`vllm-supervisor apply` writes it anew",
        ) from e


def state(store: Store, item: InForce) -> State:
    """What `decide` needs to know of a service under the fingerprint in force."""
    known = store.cap(item.applied.name, item.applied.fingerprint)
    paused = store.pause(item.applied.name) is not None
    declared = Values(
        item.service.max_num_seqs,
        item.service.memory_share,
        int(item.service.number("max-model-len", 0)) or None,
        enforce_eager=item.service.arguments.get("enforce-eager") is True,
    )
    if known is None:
        return State(bounds(item.service.remediation), declared, paused=paused)
    learned = Values(known.value, known.gpu_memory_utilization, known.max_model_len, known.enforce_eager)
    return State(
        bounds(item.service.remediation), declared, learned, known.attempts, known.treated, known.exhausted, paused
    )


def bounds(remediation: Remediation) -> Bounds:
    """What the operator allows, as `decide` wants it."""
    utilization = remediation.gpu_memory_utilization
    return Bounds(
        floor=remediation.floor,
        max_attempts=remediation.max_attempts,
        enabled=remediation.enabled,
        utilization_step=utilization.step if utilization else None,
        utilization_floor=utilization.floor if utilization else 0.0,
        model_len_floor=remediation.max_model_len.floor if remediation.max_model_len else None,
        eager=remediation.enforce_eager,
    )


def unit_cap(known: LearnedCap | None) -> units.Cap | None:
    """The part of what was learned that the unit shows; None when that is nothing."""
    if known is None:
        return None
    learned = {
        Flag.GPU_MEMORY_UTILIZATION: known.gpu_memory_utilization,
        Flag.MAX_MODEL_LEN: known.max_model_len,
        Flag.ENFORCE_EAGER: known.enforce_eager or None,
    }
    others = {str(flag): value for flag, value in learned.items() if value is not None}
    return units.Cap(known.value, known.reason, others) if others or known.value is not None else None


def unit_texts(store: Store, names: Iterable[str], host: units.Host) -> dict[str, str]:
    """Render the units of some services in force: unit -> text, in the order of the names."""
    everything = services(store)
    after = units.ordering({name: item.service for name, item in everything.items()})
    texts = {}
    for name in sorted(names):
        item = everything[name]
        fingerprint = item.applied.fingerprint
        cap = unit_cap(store.cap(name, fingerprint))
        texts[item.unit] = units.render(item.service, cap, host, fingerprint=fingerprint, after=after[name])
    return texts


def this_host() -> units.Host:
    """The systemd that runs here, and how a unit calls this program.

    Raises:
        HostError: no systemd, or this program is not installed as one that a unit could call.
    """
    return units.Host(systemd_version=systemd.version(), program=(str(_program()),))


def _program() -> Path:
    beside = Path(sys.executable).parent / "vllm-supervisor"
    found = beside if beside.exists() else Path(shutil.which("vllm-supervisor") or "")
    if not found.is_absolute():
        raise HostError(
            "cannot find the vllm-supervisor program beside its Python or on PATH", hint="install it with pip"
        )
    return found
