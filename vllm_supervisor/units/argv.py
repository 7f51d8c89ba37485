"""The command line of a service, and the fingerprint of what its memory use depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vllm_supervisor.config import Service
from vllm_supervisor.learned import Flag, Values

# argparse in vLLM takes most lists as `--flag a b`. These are the exceptions; `FrontendArgs` of vLLM 0.8.5 to 0.32.0.
_REPEATED = frozenset({"middleware"})  # action "append": once per value
_JSON_LISTS = frozenset({"allowed-headers", "allowed-methods", "allowed-origins"})  # one word of JSON

# Switches without a `--no-` form (action "store_true" in vLLM 0.32.0); off is to leave them out.
_ONE_WAY = frozenset(
    {
        "aggregate-engine-logging",
        "data-parallel-multi-port-external-lb",
        "disable-log-requests",
        "disable-log-stats",
    }
)

# Flags and variables that move no byte of GPU memory: a cap learned before they changed still holds.
_NO_MEMORY_FLAGS = frozenset(
    {
        "aggregate-engine-logging",
        "allow-credentials",
        "allowed-headers",
        "allowed-methods",
        "allowed-origins",
        "chat-template",
        "chat-template-content-format",
        "disable-access-log-for-endpoints",
        "disable-fastapi-docs",
        "disable-log-requests",
        "disable-log-stats",
        "disable-uvicorn-access-log",
        "enable-auto-tool-choice",
        "enable-log-deltas",
        "enable-log-outputs",
        "enable-log-requests",
        "enable-prompt-tokens-details",
        "enable-request-id-headers",
        "log-config-file",
        "log-error-stack",
        "log-level",
        "logging-config",
        "max-log-len",
        "middleware",
        "otlp-traces-endpoint",
        "response-role",
        "root-path",
        "served-model-name",
        "shutdown-timeout",
        "ssl-ca-certs",
        "ssl-cert-reqs",
        "ssl-certfile",
        "ssl-ciphers",
        "ssl-keyfile",
        "tool-call-parser",
        "uvicorn-log-level",
    }
)
_NO_MEMORY_VARIABLES = (
    "NO_COLOR",
    "PYTHONUNBUFFERED",
    "VLLM_CONFIGURE_LOGGING",
    "VLLM_LOGGING_",
    "VLLM_NO_USAGE_STATS",
)


@dataclass(frozen=True, slots=True)
class Cap:
    """What was learned of a service, over what its operator declared.

    Attributes:
        values: `max-num-seqs` is an upper bound; any other flag takes the place of the declared one.
        reason: one sentence; it becomes a comment in the unit.
    """

    values: Values
    reason: str

    @property
    def seqs(self) -> int | None:
        """Upper bound on `max_num_seqs`; None where none was learned."""
        return int(self.values[Flag.MAX_NUM_SEQS]) if Flag.MAX_NUM_SEQS in self.values else None

    @property
    def others(self) -> Values:
        """All but that."""
        return {flag: value for flag, value in self.values.items() if flag != Flag.MAX_NUM_SEQS}


def effective(service: Service, cap: Cap | None) -> int | None:
    """The `max_num_seqs` a service runs with; None if that is left to vLLM."""
    bounds = [n for n in (service.max_num_seqs, cap.seqs if cap else None) if n is not None]
    return min(bounds, default=None)


def serve_argv(service: Service, cap: Cap | None) -> list[str]:
    """The words of the command line, program first."""
    return [word for group in serve_words(service, cap) for word in group]


def serve_words(service: Service, cap: Cap | None) -> Iterator[list[str]]:
    """The same words, each flag with its values in a group of its own: sorted, so that the order in the YAML is free.

    The model comes before the flags, since a flag that takes several values would swallow it.
    """
    yield [str(service.executable), "serve", service.model]
    if service.host is not None:
        yield ["--host", service.host]
    yield ["--port", str(service.port)]
    for flag, value in sorted({**service.arguments, **(cap.others if cap else {})}.items()):
        yield from argument_words(flag, value)
    if (seqs := effective(service, cap)) is not None:
        yield ["--max-num-seqs", str(seqs)]


def argument_words(flag: str, value: object) -> Iterator[list[str]]:
    """The words of one entry of `arguments:`, in groups as above; none for a switch that is off by being left out."""
    option = f"--{flag}"
    if isinstance(value, bool) and "." not in flag:
        if value:
            yield [option]
        elif flag not in _ONE_WAY:
            yield [f"--no-{flag}"]
    elif isinstance(value, list) and flag in _REPEATED:
        yield from (_assigned(option, _text(item)) for item in value)
    elif isinstance(value, list) and flag not in _JSON_LISTS and "." not in flag:
        yield [option, *map(_text, value)]
    else:
        yield _assigned(option, _text(value))


def _assigned(option: str, text: str) -> list[str]:
    # argparse takes a separate word that begins with a dash for the next flag.
    return [f"{option}={text}"] if text.startswith("-") else [option, text]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def fingerprint(service: Service, vllm_version: str | None) -> str:
    """16 hex digits over all that GPU memory use depends on; a cap holds for one of them.

    `max_num_seqs`, names, ports and logging are not among it. The content of a file that `config` names is not seen.
    """
    facts: Mapping[str, object] = {
        "arguments": {k: v for k, v in service.arguments.items() if k.partition(".")[0] not in _NO_MEMORY_FLAGS},
        "environment": {k: v for k, v in service.environment.items() if not k.startswith(_NO_MEMORY_VARIABLES)},
        "executable": str(service.executable),
        "gpus": service.gpus,
        "model": service.model,
        "vllm": vllm_version,
    }
    return digest(json.dumps(facts, sort_keys=True))


def digest(text: str) -> str:
    """16 hex digits of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
