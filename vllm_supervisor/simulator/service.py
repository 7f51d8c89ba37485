"""What a command line amounts to once vLLM's defaults are filled in."""

from __future__ import annotations

from typing import Any, NamedTuple

from vllm_supervisor.simulator import memory
from vllm_supervisor.simulator.flags import CommandLine, version
from vllm_supervisor.simulator.generations import Generation
from vllm_supervisor.simulator.settings import Settings

_LARGE_CARD_GIB = 70  # vLLM's own threshold for the large defaults
_HUGE_CARD_GIB = 160  # from 0.28.0, for the batched tokens only
_COMMON_DEFAULTS = {"port": 8000, "tensor_parallel_size": 1, "runner": "auto"}


class ValidationError(Exception):
    """A combination of values vLLM's configuration refuses; the text is what pydantic prints."""


class Service(NamedTuple):
    """One `vllm serve`; sizes count what their names say, `utilization` is a share of the card."""

    model: str
    served_names: tuple[str, ...]
    host: str
    port: int
    api_keys: tuple[str, ...]
    tensor_parallel_size: int
    workers: bool  # ranks are processes of their own, and not part of the engine
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    utilization: float
    enforce_eager: bool
    pooling: bool
    log_requests: bool
    arguments: dict[str, Any]  # as `non-default args` prints them


def resolve(line: CommandLine, settings: Settings, generation: Generation) -> Service:
    """Fill in the defaults of the release for the pretended card. `validate` is a step of its own, as in vLLM."""
    given = line.values
    model = line.model or given.get("model", "Qwen/Qwen3-0.6B")
    world = given.get("tensor_parallel_size", 1)
    max_model_len = given.get("max_model_len", settings.model_len)
    if max_model_len < 0:
        max_model_len = settings.model_len
    seqs, batched = _batch_sizes(given, max_model_len, settings, generation)
    names = tuple(given.get("served_model_name", (model,)))
    changed = {key: value for key, value in given.items() if _COMMON_DEFAULTS.get(key) != value}
    return Service(
        model=model,
        served_names=names,
        host=given.get("host", "0.0.0.0"),
        port=given.get("port", 8000),
        api_keys=tuple(given.get("api_key", ())),
        tensor_parallel_size=world,
        workers=world > 1 or given.get("distributed_executor_backend") == "mp",
        max_model_len=max_model_len,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        utilization=given.get("gpu_memory_utilization", generation.utilization),
        enforce_eager=given.get("enforce_eager", False),
        pooling=given.get("runner") == "pooling" or given.get("task") in ("embed", "embedding", "classify", "score"),
        log_requests=given.get("enable_log_requests", False),
        arguments={"model_tag": model, "model": model, **changed},
    )


def validate(service: Service) -> None:
    """Refuse what vLLM's scheduler configuration refuses.

    Raises:
        ValidationError: with pydantic's text.
    """
    if service.max_num_seqs < 1:
        raise ValidationError(
            "1 validation error for SchedulerConfig\nmax_num_seqs\n  Input should be greater than or equal to 1 "
            f"[type=greater_than_equal, input_value={service.max_num_seqs}, input_type=int]\n"
            "    For further information visit https://errors.pydantic.dev/2.12/v/greater_than_equal"
        )
    if service.max_num_batched_tokens < service.max_num_seqs:
        raise ValidationError(
            "1 validation error for SchedulerConfig\n  Value error, max_num_batched_tokens "
            f"({service.max_num_batched_tokens}) must be greater than or equal to max_num_seqs "
            f"({service.max_num_seqs}). [type=value_error, input_value=ArgsKwargs((), {{'runner_t..., "
            "'stream_interval': 1}), input_type=ArgsKwargs]\n"
            "    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
        )


def card(service: Service, settings: Settings, generation: Generation) -> memory.Card:
    """What one rank of the service puts on its card."""
    return memory.Card(
        capacity=int(settings.gpu_gib * memory.GIB),
        weights=int(settings.weights_gib * memory.GIB) // service.tensor_parallel_size,
        activation=int(settings.activation_gib * memory.GIB),
        graphs=0 if service.enforce_eager else int(settings.graph_gib * memory.GIB),
        outside=int(settings.outside_gib * memory.GIB),
        kv_per_token=settings.kv_bytes,
        vocabulary=settings.vocabulary,
        buffers=settings.sampler_bytes or generation.sampler_bytes,
    )


def _batch_sizes(
    given: dict[str, Any], max_model_len: int, settings: Settings, generation: Generation
) -> tuple[int, int]:
    """`max_num_seqs` and `max_num_batched_tokens`; a defaulted value gives way to a given one."""
    spared = generation.spares_a100 and "a100" in settings.gpu_name.lower()
    large = settings.gpu_gib >= _LARGE_CARD_GIB and not spared
    seqs = given.get("max_num_seqs", 1024 if large else 256)
    batched = given.get("max_num_batched_tokens")
    if batched is None:
        batched = 8192 if large else 2048
        if settings.gpu_gib >= _HUGE_CARD_GIB and version(settings.vllm_version) >= (0, 28):
            batched = 16384
        batched = min(batched, max(seqs, 1) * max_model_len)
    if "max_num_seqs" not in given:
        seqs = min(seqs, batched)
    return seqs, batched
