"""What `apply` last put in force, and the unit text that follows from it and from what was learned since.

The daemon renders from here and never from the YAML: a file that somebody is editing at midnight changes nothing until
it is applied, and a remedy changes one number and nothing else.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from vllm_supervisor import units
from vllm_supervisor.config import Service
from vllm_supervisor.errors import HostError, StoreError
from vllm_supervisor.host import systemd
from vllm_supervisor.learned import Flag, Values
from vllm_supervisor.remedy import State
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
        return _validated(applied.spec)
    except ValidationError as e:
        raise StoreError(
            f"cannot use what {store.path} holds of services.{applied.name}: another version of this program wrote it",
            hint="`vllm-supervisor apply` writes it anew",
        ) from e


@lru_cache(maxsize=1024)  # as many services as a configuration may have
def _validated(spec: str) -> Service:
    """What is read again for every unit that is written is checked once; it cannot be changed."""
    return Service.model_validate_json(spec)


def state(store: Store, item: InForce) -> State:
    """What `decide` needs to know of a service under the fingerprint in force."""
    known = store.cap(item.applied.name, item.applied.fingerprint)
    paused = store.pause(item.applied.name) is not None
    allowed, declared = item.service.remediation, _declared(item.service)
    if known is None:
        return State(allowed, declared, paused=paused)
    return State(allowed, declared, known.values, known.attempts, known.treated, known.exhausted, paused)


def _declared(service: Service) -> Values:
    """What a remedy begins from: the flags as the operator wrote them, and the share, which vLLM always takes."""
    values = {
        Flag.MAX_NUM_SEQS: service.max_num_seqs,
        Flag.GPU_MEMORY_UTILIZATION: service.memory_share,
        Flag.MAX_MODEL_LEN: int(service.number("max-model-len", 0)),
        Flag.ENFORCE_EAGER: service.arguments.get("enforce-eager") is True,
    }
    return {flag: value for flag, value in values.items() if value}


def unit_cap(known: LearnedCap | None) -> units.Cap | None:
    """The part of what was learned that the unit shows."""
    return units.Cap(known.values, known.reason) if known else None


def unit_texts(store: Store, names: Iterable[str], host: units.Host) -> dict[str, str]:
    """Render the units of some services in force: unit -> text, in the order of the names."""
    everything, wanted = services(store), sorted(names)
    after = units.ordering({name: item.service for name, item in everything.items()}, wanted)
    texts = {}
    for name in wanted:
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
