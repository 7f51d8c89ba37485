"""What pydantic found, in words an operator can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from vllm_supervisor.config.model import ModelLen, Remediation, Settings, Utilization
from vllm_supervisor.redact import is_secret

_WRONG_TYPE: Mapping[str, tuple[str, str]] = {
    "bool_type": ("neither true nor false", "write true or false, without quotes"),
    "dict_type": ("not a mapping", "write `KEY: VALUE` lines under it, indented"),
    "int_type": ("not a whole number", "write digits, without quotes"),
    "mapping_type": ("not a mapping", "write `KEY: VALUE` lines under it, indented"),
    "model_type": ("not a mapping", "write `KEY: VALUE` lines under it, indented"),
    "string_type": ("not a text", "put it in quotes"),
    "tuple_type": ("not a list", "write it as [0, 1]"),
}


@dataclass(frozen=True, slots=True)
class Explained:
    """One error.

    Attributes:
        path: the way to the value inside the service.
        message: why it cannot be used.
        hint: what to do.
        secret: the value must not be repeated.
        absent: there is no value.
    """

    path: tuple[str, ...]
    message: str
    hint: str
    secret: bool = False
    absent: bool = False


def explained(error: ValidationError) -> Iterator[Explained]:
    """Each error of a failed validation, one for each place: where a key is refused, its value does not matter."""
    found: dict[tuple[str, ...], ErrorDetails] = {}
    for details in error.errors(include_url=False):
        path = tuple(str(part) for part in details["loc"] if part != "[key]")
        if path not in found or details["loc"][-1] == "[key]":
            found[path] = details
    for path, details in found.items():
        yield Explained(path, *_words(details, path), absent=details["type"] == "missing")


def _words(details: ErrorDetails, path: tuple[str, ...]) -> tuple[str, str, bool]:
    context: Mapping[str, object] = details.get("ctx", {})
    match details["type"]:
        case "refused":
            return str(context["message"]), str(context["hint"]), bool(context["secret"])
        case "missing":
            return "it is missing", "set it here or under `defaults:`", False
        case "extra_forbidden":
            return "no such key", _nearest(path), is_secret(path[-1])
        case "greater_than_equal":
            return "too small", f"use {context['ge']} or more", False
        case "greater_than":
            return "too small", f"use more than {context['gt']}", False
        case "less_than_equal":
            return "too large", f"use {context['le']} or less", False
        case "less_than":
            return "too large", f"use less than {context['lt']}", False
        case kind:
            return *_WRONG_TYPE.get(kind, (details["msg"], "")), False


_KEYS = {
    ("remediation",): Remediation.model_fields,
    ("remediation", "gpu_memory_utilization"): Utilization.model_fields,
    ("remediation", "max_model_len"): ModelLen.model_fields,
}


def _nearest(path: tuple[str, ...]) -> str:
    known = _KEYS.get(path[:-1], Settings.model_fields)
    return nearest(path[-1], list(known), flag_hint=len(path) == 1)


def nearest(word: str, known: list[str], *, flag_hint: bool = False) -> str:
    """A hint naming the known key that `word` probably meant, or all of them."""
    close = difflib.get_close_matches(word.replace("-", "_"), known, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{close[0]}`?"
    if flag_hint:
        return "flags of `vllm serve` go under `arguments:`; the keys of a service are " + ", ".join(known)
    return "the keys here are " + ", ".join(known)
