"""The kinds of values in the file: what each may be, what to say of one that is not, and its part of the schema."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictInt,
    StrictStr,
)
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from vllm_supervisor.config import flags, hardening, secrets
from vllm_supervisor.redact import redact

MAX_NAME = 48  # keeps `vllm-NAME.service` and the paths made of it far below the 255 bytes of a file name
MAX_GPUS = 256
MAX_PATH = 4000  # bytes; Linux takes 4095 (PATH_MAX)
MAX_BYTES = 100_000  # one word of a command line may have 128 KiB (MAX_ARG_STRLEN of Linux)
RESERVED_NAME = "supervisor"  # vllm-supervisor.service and /var/lib/vllm-supervisor are this program's own

_NAME = f"[a-z0-9][a-z0-9-]{{0,{MAX_NAME - 1}}}"
_USER = "[a-z_][a-z0-9_-]{0,30}"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_ZONE = re.compile("[A-Za-z0-9._-]{1,15}")  # an interface, as the kernel names them
_PROGRAM = r"/[A-Za-z0-9._+@/-]{1,4000}"
_FILE = r"/[^\x00-\x1f\x7f\\]*[^\x00-\x1f\x7f\\\s]"
_VARIABLE = "[A-Za-z_][A-Za-z0-9_]{0,254}"
_CREDENTIAL = "[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"
_BREAKS = re.compile(r"[\n\r\0]")
_OUR_VARIABLES: Mapping[str, tuple[str, str]] = {
    "CUDA_VISIBLE_DEVICES": ("the tool sets it", "list the GPUs under the service's `gpus:`"),
    "SUPERVISED_RUN": ("the tool sets it, to know what a process was started with", "remove it"),
}


def refuse(message: str, hint: str = "", *, secret: bool = False) -> PydanticCustomError:
    """An error that carries its way out; `secret` keeps the value out of what is printed."""
    # The message goes by way of the context: braces in it are no placeholders.
    return PydanticCustomError("refused", "{message}", {"message": message, "hint": hint, "secret": secret})


@dataclass(frozen=True, slots=True)
class Matching:
    """Marks a text that must match a pattern from end to end; the JSON Schema shows the same pattern."""

    pattern: str
    message: str
    hint: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check what the inner type has accepted."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema of the inner type with the pattern added."""
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}

    def _check(self, value: str | Path) -> str | Path:
        if not re.fullmatch(self.pattern, str(value)):
            raise refuse(self.message, self.hint)
        return value


def _text_first(value: object) -> object:
    if not isinstance(value, str | Path):
        raise refuse("not a text", "put it in quotes")
    return value


def _one_line(value: str) -> str:
    if _BREAKS.search(value):
        raise refuse("it holds a line break or a NUL", "a unit's values are one line: put long text into a file")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise refuse("it is not valid Unicode: half of a surrogate pair") from None
    if size > MAX_BYTES:
        raise refuse(f"it is longer than {MAX_BYTES} bytes", "put it into a file, and give the file")
    if redact(value) != value:
        raise refuse("it holds a secret, which every user of the host could read", secrets.IN_A_TEXT, secret=True)
    return value


def _path(value: Path) -> Path:
    if not str(value).isprintable() or len(str(value).encode()) > MAX_PATH:
        raise refuse("not a path that can be shown", f"rename the file; {MAX_PATH} bytes at the most")
    return value


def _model(value: str) -> str:
    if not value.strip() or value.startswith("-"):
        raise refuse("not the name of a model", "give a repository such as `org/model`, or the path of a directory")
    return _one_line(value)


def _host(value: str) -> str:
    address, percent, zone = value.partition("%")  # Python takes anything for a zone, line breaks too
    if _is_address(address):
        if not percent or (":" in address and _ZONE.fullmatch(zone)):
            return value
    elif _HOST_NAME.fullmatch(value):
        return value
    raise refuse("not an address or a host name", "write it without scheme, port and brackets")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _not_reserved(value: str) -> str:
    if value == RESERVED_NAME:
        raise refuse(f"`vllm-{RESERVED_NAME}.service` is this tool's own unit", "choose another name")
    return value


def _not_our_directory(user: str) -> str:
    if user == RESERVED_NAME:  # systemd would hand the directory of our store over to it, as its StateDirectory=
        raise refuse(f"/var/lib/vllm-{RESERVED_NAME} is this tool's own", "run the service as another user")
    return user


def _hardening(values: Mapping[str, object]) -> Mapping[str, object]:
    for setting, value in values.items():
        if found := hardening.complaint(setting, value):
            raise refuse(f"{setting}: {found[0]}", found[1])
    return values


def _flag(key: str) -> str:
    if found := flags.complaint(key):
        raise refuse(*found, secret=flags.holds_secret(key))
    return key


def _variable(name: str) -> str:
    if found := _OUR_VARIABLES.get(name):
        raise refuse(*found)
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
    if hint := secrets.unread(name):
        raise refuse("nothing reads a credential of that name", hint)
    return name


def _argument(value: object) -> object:
    """What a flag is given: a switch, a text (a number becomes what was written), a list, or a mapping for JSON."""
    if value is None:
        raise refuse("it has no value", "write true for a switch")
    if isinstance(value, bool):
        return value
    if not isinstance(value, list):
        return value if _checked(value) and isinstance(value, dict) else str(value)
    if not value:
        raise refuse("an empty list", "leave the flag out")
    for item in value:
        if isinstance(item, bool | list | None):
            raise refuse("a list holds texts, numbers or mappings", "quote an item that is meant as text")
        _checked(item)
    return value


def _checked(value: object) -> str:
    return _one_line(json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value))


def _as_words(arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Numbers in a list become what was written too, except below a dot, where the list is JSON."""
    return {flag: _texts(value) if "." not in flag else value for flag, value in arguments.items()}


def _texts(value: object) -> object:
    return [item if isinstance(item, dict) else str(item) for item in value] if isinstance(value, list) else value


def _some_and_distinct(indices: tuple[int, ...]) -> tuple[int, ...]:
    if not indices:
        raise refuse("an empty list", "leave the key out to use all")
    if len(set(indices)) != len(indices):
        raise refuse("a GPU is listed twice", "list each once")
    return indices


Name = Annotated[
    StrictStr,
    Matching(_NAME, "not a name for a unit", f"use a-z, 0-9 and dashes, at most {MAX_NAME}, not a dash first"),
    AfterValidator(_not_reserved),
]
Model = Annotated[StrictStr, AfterValidator(_model)]
Program = Annotated[
    Path,
    BeforeValidator(_text_first),
    Matching(
        _PROGRAM,
        "not a plain absolute path",
        "give the `vllm` of a virtual environment, such as /opt/vllm/bin/vllm; letters, digits and ._+@/- only",
    ),
]
File = Annotated[
    Path,
    BeforeValidator(_text_first),
    Matching(_FILE, "not the absolute path of a file", "begin with /, without backslashes or control characters"),
    AfterValidator(_path),
]
User = Annotated[StrictStr, Matching(_USER, "not a name of a user or group", "use one that exists on this host")]
Hardening = Annotated[Mapping[str, Any], AfterValidator(_hardening)]
ServiceUser = Annotated[User, AfterValidator(_not_our_directory)]
Host = Annotated[StrictStr, AfterValidator(_host)]
Gpus = Annotated[
    tuple[Annotated[StrictInt, Field(ge=0, lt=MAX_GPUS)], ...],
    AfterValidator(_some_and_distinct),
    Field(json_schema_extra={"minItems": 1}),
]
Variable = Annotated[
    str,
    Matching(_VARIABLE, "not the name of a variable", "use letters, digits and underscores, not a digit first"),
    AfterValidator(_variable),
]
VariableValue = Annotated[
    Any, AfterValidator(_variable_value), Field(json_schema_extra={"type": ["string", "number", "null"]})
]
Credential = Annotated[
    str,
    Matching(_CREDENTIAL, "not a file name for a credential", "use letters, digits, dots, dashes and underscores"),
    AfterValidator(_credential),
]
Flag = Annotated[str, AfterValidator(_flag)]
_Argument = Annotated[
    Any,
    AfterValidator(_argument),
    Field(json_schema_extra={"type": ["boolean", "number", "string", "array", "object", "null"]}),
]
Arguments = Annotated[Mapping[Flag, _Argument], AfterValidator(_as_words)]
# What the keys of the three mappings may be, for the JSON Schema: pydantic leaves that out.
VARIABLE_NAMES: JsonDict = {"propertyNames": {"pattern": f"^{_VARIABLE}$", "not": {"enum": [*_OUR_VARIABLES]}}}
CREDENTIAL_NAMES: JsonDict = {"propertyNames": {"pattern": f"^{_CREDENTIAL}$"}}
FLAG_NAMES: JsonDict = {
    "propertyNames": {
        "pattern": r"^[a-z][a-z0-9]*([-_][a-z0-9]+)*(\.[A-Za-z0-9_]+)*$",
        "not": {"enum": [*dict.fromkeys(key for flag in flags.REFUSED for key in (flag, flag.replace("-", "_")))]},
    }
}
SERVICE_NAMES: JsonDict = {"pattern": f"^{_NAME}$", "not": {"const": RESERVED_NAME}}
