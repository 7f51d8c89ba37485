"""What one service is: the keys of the file, their bounds, and the sentence that explains each of them.

The descriptions here are the ones in the JSON Schema that editors show. Rules that concern one value stand here; rules
between values or services are in `checks`.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from pydantic_core import PydanticCustomError

from vllm_supervisor.config import flags, secrets

DEFAULT_PORT = 8000
DEFAULT_USER = "vllm"
DEFAULT_START_TIMEOUT_S = 5400  # an hour of loading, and half as much again
# vLLM's default was 0.9 up to 0.20.1 and is 0.92 since; the lower one refuses nothing that a host may run.
DEFAULT_UTILISATION = 0.9
_MOST_GPUS = 256
MAX_NAME = 48  # keeps `vllm-NAME.service` and the paths made of it far below the 255 bytes of a file name

_UNIT_WORD = r"[a-z0-9][a-z0-9-]*"
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_PROGRAM = re.compile(r"/[A-Za-z0-9._+@/-]+")
_FILE = re.compile(r"/[^\x00-\x1f\x7f\\]*[^\x00-\x1f\x7f\\\s]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_BREAKS = re.compile(r"[\n\r\0]")


def refuse(message: str, hint: str = "", *, secret: bool = False) -> PydanticCustomError:
    """An error that carries its way out; `secret` keeps the value out of the message."""
    # The braces of a message are not placeholders for pydantic.
    return PydanticCustomError("refused", "{message}", {"message": message, "hint": hint, "secret": secret})


def _matching(pattern: re.Pattern[str], message: str, hint: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise refuse(message, hint)
        return value

    return AfterValidator(check)


def _absolute(pattern: re.Pattern[str], message: str, hint: str) -> BeforeValidator:
    def check(value: object) -> Path:
        if not isinstance(value, str | Path):
            raise refuse("not a text", "put it in quotes")
        if not pattern.fullmatch(str(value)):
            raise refuse(message, hint)
        return Path(value)

    return BeforeValidator(check)


def _one_line(value: str) -> str:
    if _BREAKS.search(value):
        raise refuse("it holds a line break or a NUL", "a unit file's values are one line: put long text into a file")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refuse("it is not valid Unicode (half of a surrogate pair)") from None
    return value


def _model(value: str) -> str:
    if not value.strip() or value.startswith("-"):
        raise refuse("not the name of a model", "give a repository such as `org/model`, or the path of a directory")
    return _one_line(value)


def _host(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        if not _HOST.fullmatch(value):
            raise refuse("not an address or a host name", "write it without scheme, port and brackets") from None
    return value


def _name(value: str) -> str:
    if not re.fullmatch(_UNIT_WORD, value) or len(value) > MAX_NAME:
        raise refuse(
            "not a name for a unit", f"use small letters, digits and dashes, at most {MAX_NAME}, not a dash first"
        )
    if value == "supervisor":
        raise refuse("`vllm-supervisor.service` is this tool's own unit", "choose another name")
    return value


def _flag(key: str) -> str:
    if found := flags.complaint(key):
        raise refuse(*found, secret=key.partition("=")[2] != "" or flags.holds_secret(key))
    return key


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise refuse("not the name of a variable", "use letters, digits and underscores, not a digit first")
    if name == "CUDA_VISIBLE_DEVICES":
        raise refuse("the tool sets it", "list the GPUs under the service's `gpus:`")
    if name == "SUPERVISED_RUN":
        raise refuse("the tool sets it: it tells which unit text a process was started with", "remove it")
    if hint := secrets.way_out(name):
        raise refuse("a secret here can be read by every user of the host", hint, secret=True)
    return name


def _variable_value(value: object) -> str:
    if isinstance(value, bool):
        raise refuse("true and false are not text", "write it in quotes, as the program expects it: '1' or 'true'")
    if not isinstance(value, str | int | float):
        raise refuse("a variable is one text", "quote it if it begins with { or [")
    return _one_line(str(value))


def _credential(name: str) -> str:
    if not _CREDENTIAL.fullmatch(name):
        raise refuse("not a file name for a credential", "use letters, digits, dots, dashes and underscores")
    if hint := secrets.unread(name):
        raise refuse("nothing reads a credential of that name", hint)
    return name


def _argument(value: object) -> object:
    """What a flag is given: a switch, a text (a number becomes what was written), a list, or a mapping for JSON."""
    if isinstance(value, list):
        if not value:
            raise refuse("an empty list", "leave the flag out")
        return [_item(item) for item in value]
    if value is None:
        raise refuse("it has no value", "write true for a switch")
    if isinstance(value, bool):
        return value
    return _item(value)


def _item(value: object) -> object:
    if isinstance(value, dict):
        _one_line(json.dumps(value, ensure_ascii=False))
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise refuse("a list holds texts, numbers or mappings", "quote an item that is meant as text")
    return _one_line(str(value))


def _distinct(indices: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(indices)) != len(indices):
        raise refuse("a GPU is listed twice")
    return indices


Gpus = Annotated[
    tuple[Annotated[StrictInt, Field(ge=0, lt=_MOST_GPUS)], ...], Field(min_length=1), AfterValidator(_distinct)
]
Argument = Annotated[
    Any,
    AfterValidator(_argument),
    Field(json_schema_extra={"type": ["boolean", "number", "string", "array", "object", "null"]}),
]
_FilePath = Annotated[
    Path,
    _absolute(_FILE, "not the absolute path of a file", "begin with /, without backslashes or control characters"),
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Remediation(_Model):
    """Whether and how far `max_num_seqs` may be lowered when sampler warm-up runs out of GPU memory."""

    enabled: StrictBool = Field(default=True, description="Whether a failed start may lower max_num_seqs at all.")
    floor: StrictInt = Field(default=8, ge=1, description="The lowest max_num_seqs that may be set.")
    max_attempts: StrictInt = Field(
        default=8, ge=1, le=64, description="How often it may be lowered before the service is left down."
    )


class Settings(_Model):
    """One `vllm serve`, as the operator writes it."""

    model: Annotated[
        StrictStr,
        AfterValidator(_model),
        Field(description="What to serve: a Hugging Face repository (`org/model`) or a directory."),
    ]
    executable: Annotated[
        Path,
        _absolute(
            _PROGRAM,
            "not a plain absolute path",
            "give the `vllm` of a virtual environment, such as /opt/vllm/bin/vllm; letters, digits and ._+@/- only",
        ),
        Field(description="The `vllm` program to run, an absolute path; its directory comes first in PATH."),
    ]
    user: Annotated[StrictStr, _matching(_USER, "not a user name", "name a user of this host")] = Field(
        default=DEFAULT_USER, description="The system user the service runs as."
    )
    group: Annotated[StrictStr, _matching(_USER, "not a group name", "name a group of this host")] | None = Field(
        default=None, description="The group it runs as; the user's own if left out."
    )
    environment: Mapping[
        Annotated[str, AfterValidator(_variable)],
        Annotated[Any, AfterValidator(_variable_value), Field(json_schema_extra={"type": ["string", "number"]})],
    ] = Field(default={}, description="Environment variables; secrets belong under credentials, GPUs under gpus.")
    credentials: Mapping[Annotated[str, AfterValidator(_credential)], _FilePath] = Field(
        default={},
        description=(
            "Secrets by name: the file that holds each of them. The service sees a copy under "
            "/run/credentials/vllm-NAME.service/, nobody else does. HF_TOKEN is used for downloads."
        ),
    )
    gpus: Gpus | None = Field(
        default=None, description="GPU indices in PCI bus order, as nvidia-smi counts; all visible ones if left out."
    )
    host: Annotated[StrictStr, AfterValidator(_host)] | None = Field(
        default=None, description="The address to listen on; every address if left out."
    )
    port: StrictInt = Field(default=DEFAULT_PORT, ge=1, le=65535, description="The TCP port to listen on.")
    max_num_seqs: StrictInt | None = Field(
        default=None,
        ge=1,
        description="The most sequences served at a time; vLLM's own default for the card if left out.",
    )
    arguments: Mapping[Annotated[str, AfterValidator(_flag)], Argument] = Field(
        default={},
        description=(
            "Any other flag of `vllm serve`, as it spells it, without the dashes: true and false for switches, "
            "a list for several values, a mapping for JSON."
        ),
    )
    remediation: Remediation = Field(default=Remediation(), description="What may be done when a start fails.")
    start_timeout: StrictInt = Field(
        default=DEFAULT_START_TIMEOUT_S,
        ge=1,
        le=604800,
        description="Seconds a start may take, download, compilation and warm-up included, before it is given up.",
    )


class Service(Settings):
    """A service that can be rendered: its settings with all defaults applied, its name, and where it came from."""

    name: Annotated[StrictStr, AfterValidator(_name)]
    source: Path

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names clients may ask for; the first one is what vLLM calls the model in its answers."""
        given = self.arguments.get("served-model-name")
        names = given if isinstance(given, list) else [given] if given is not None else [self.model]
        return tuple(str(name) for name in names)

    @property
    def devices(self) -> tuple[int, ...]:
        """The GPUs it fills, as far as its flags tell; the first ones of the host where none are listed."""
        wanted = self.world_size
        return self.gpus[:wanted] if self.gpus is not None else tuple(range(wanted))

    @property
    def world_size(self) -> int:
        """GPUs used on this host: tensor x pipeline x prefill-context x local data parallel, over the nodes."""
        shards = 1.0
        for flag in ("tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size"):
            shards *= self.number(flag, 1)
        replicas = self.number("data-parallel-size-local", self.number("data-parallel-size", 1))
        if "data-parallel-rank" in self.arguments:  # one process of an external load balancer's set
            replicas = 1
        return max(1, min(_MOST_GPUS, int(shards * replicas / max(1, self.number("nnodes", 1)))))

    @property
    def memory_share(self) -> float:
        """The part of each GPU's memory it takes, 0 to 1."""
        return self.number("gpu-memory-utilization", DEFAULT_UTILISATION)

    def number(self, flag: str, default: float) -> float:
        """The value of a numeric flag of `arguments`; `default` where it is not given or not a plain finite number."""
        value = self.arguments.get(flag)
        try:
            number = float(value) if isinstance(value, str) else default
        except ValueError:
            return default
        return number if math.isfinite(number) else default
