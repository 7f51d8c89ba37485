"""Rules between the values of one service, and between services. Pure; each complaint names the key to blame."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm_supervisor.config import flags
from vllm_supervisor.config.model import Service

_SLACK = 1e-9  # 0.3 + 0.3 + 0.4 is a little more than 1 in binary


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with `key` (a path inside the service), and with whom it collides."""

    service: Service
    key: tuple[str, ...]
    message: str
    hint: str
    others: tuple[Service, ...] = ()


def within(service: Service) -> Iterator[Complaint]:
    """Everything wrong with one service whose values are each sound."""
    floor, declared = service.remediation.floor, service.max_num_seqs
    if service.remediation.enabled and declared is not None and floor > declared:
        yield Complaint(
            service,
            ("remediation", "floor"),
            f"it is above max_num_seqs ({declared}), so nothing could ever be lowered",
            f"set remediation.floor to {declared} or less, or remediation.enabled to false",
        )
    yield from _arguments(service)
    yield from _gpus(service)


def _arguments(service: Service) -> Iterator[Complaint]:
    for key in flags.conflicts(service.arguments):
        flag = key.partition(".")[0]
        yield Complaint(
            service,
            ("arguments", key),
            f"`{flag}` is given whole as well, and vLLM would keep only one of the two",
            f"put it inside the mapping of `{flag}`",
        )
    for flag, value in service.arguments.items():
        if isinstance(value, list) and any(isinstance(item, str) and item.startswith("-") for item in value):
            message = "vLLM would take an item that begins with a dash for a flag"
            yield Complaint(service, ("arguments", flag), message, "write it in another way")
    file = service.arguments.get("config", ".yaml")
    if not str(file).endswith((".yaml", ".yml")):
        yield Complaint(service, ("arguments", "config"), "vLLM refuses other names", "name it *.yaml")


def _gpus(service: Service) -> Iterator[Complaint]:
    listed, wanted = service.gpus, service.world_size
    if listed is not None and wanted > len(listed) and service.arguments.get("distributed-executor-backend") != "ray":
        yield Complaint(
            service,
            ("gpus",),
            f"its parallel sizes multiply to {wanted} GPUs, and {len(listed)} are listed",
            "list as many, or lower tensor-parallel-size and its like",
        )
    if not 0 < service.memory_share <= 1:
        yield Complaint(
            service, ("arguments", "gpu-memory-utilization"), "not a part of the GPU's memory", "use 0.1 to 1.0"
        )


def between(services: Sequence[Service]) -> Iterator[Complaint]:
    """Everything two services cannot both have; the complaint is at the later one of `services`, once for each kind."""
    for number, service in enumerate(services):
        before = services[:number]
        if same := tuple(other for other in before if other.name == service.name):
            message = f"{same[0].source} has a service of that name too"
            yield Complaint(service, (), message, "rename or remove one of them", same)
        listening = tuple(other for other in before if other not in same and _on_one_port(other, service))
        if listening:
            message = f"service {listening[0].name} ({listening[0].source}) listens there too"
            yield Complaint(service, ("port",), message, "give each its own port", listening)
    yield from _overcommitted(services)


def _on_one_port(one: Service, other: Service) -> bool:
    return one.port == other.port and _overlap(one.host, other.host)


def _overlap(one: str | None, other: str | None) -> bool:
    """Whether two listening addresses can collide; unequal names are taken for different addresses."""
    return one == other or _is_wildcard(one) or _is_wildcard(other)


def _is_wildcard(host: str | None) -> bool:
    if host is None:
        return True
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _overcommitted(services: Sequence[Service]) -> Iterator[Complaint]:
    on_gpu: dict[int, list[Service]] = defaultdict(list)
    for service in services:
        for device in service.devices:
            on_gpu[device].append(service)
    told: set[tuple[str, ...]] = set()
    for device, sharing in sorted(on_gpu.items()):
        total = sum(service.memory_share for service in sharing)
        names = tuple(service.name for service in sharing)
        if len(set(names)) > 1 and total > 1 + _SLACK and names not in told:
            told.add(names)
            parts = " + ".join(f"{service.name} {service.memory_share:g}" for service in sharing)
            yield Complaint(
                sharing[-1],
                ("gpus",),
                f"GPU {device} is over-committed: {parts} = {total:g} of its memory",
                "lower `gpu-memory-utilization` so that they add up to 1 at most, or give them different `gpus:`",
                tuple(sharing[:-1]),
            )
