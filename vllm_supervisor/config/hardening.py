"""What confines a service, by the names of systemd's settings, and what each may be loosened to.

`false` leaves a setting out. Another value must be one of the setting's own, so that nothing else can get into a unit
this way. The settings themselves, and why they are what they are, stand in `templates/service.j2`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from pydantic.config import JsonDict

_CAPABILITIES = "CAP_[A-Z_]{1,30}(?: CAP_[A-Z_]{1,30})*"
_SWITCH = ""  # on, or left out

SETTINGS: Mapping[str, str] = {
    "AmbientCapabilities": _CAPABILITIES,
    "CapabilityBoundingSet": _CAPABILITIES,
    "KeyringMode": "inherit|private|shared",
    "LockPersonality": _SWITCH,
    "NoNewPrivileges": _SWITCH,
    "PrivateMounts": _SWITCH,
    "PrivateTmp": _SWITCH,
    "ProtectControlGroups": _SWITCH,
    "ProtectHome": "yes|read-only|tmpfs",
    "ProtectHostname": _SWITCH,
    "ProtectKernelLogs": _SWITCH,
    "ProtectKernelModules": _SWITCH,
    "ProtectKernelTunables": _SWITCH,
    "ProtectProc": "noaccess|invisible|ptraceable",
    "ProtectSystem": "yes|full|strict",
    "RemoveIPC": _SWITCH,
    "RestrictAddressFamilies": "~?AF_[A-Z0-9]{1,20}(?: AF_[A-Z0-9]{1,20})*",
    "RestrictNamespaces": "~?[a-z]{2,10}(?: [a-z]{2,10})*",
    "RestrictRealtime": _SWITCH,
    "RestrictSUIDSGID": _SWITCH,
    "SystemCallArchitectures": "[a-z0-9-]{1,20}(?: [a-z0-9-]{1,20})*",
    "SystemCallErrorNumber": "E[A-Z0-9]{1,20}",
    "SystemCallFilter": "~?@?[a-z0-9_-]{1,40}(?: @?[a-z0-9_-]{1,40})*",
    "UMask": "0?[0-7]{3}",
}
"""Setting -> what it may be set to, as a pattern."""


def complaint(setting: str, value: object) -> tuple[str, str] | None:
    """Why a setting may not be given that value, and what to do; None if it may."""
    if setting not in SETTINGS:
        close = difflib.get_close_matches(setting, SETTINGS, n=1, cutoff=0.6)
        return "no setting that can be loosened here", f"did you mean `{close[0]}`?" if close else _OTHERS
    if value is False or (isinstance(value, str) and SETTINGS[setting] and re.fullmatch(SETTINGS[setting], value)):
        return None
    return "not a value for it", "write false, which leaves it out" + _alternatives(setting)


def _alternatives(setting: str) -> str:
    pattern = SETTINGS[setting]
    if not pattern:
        return ""
    return f", or {pattern.replace('|', ', ')}" if "{" not in pattern else ", or a value of systemd's"


_OTHERS = "a drop-in (`systemctl edit vllm-NAME`) sets all others; here there are " + ", ".join(SETTINGS)

SCHEMA: JsonDict = {
    "propertyNames": {"enum": [*SETTINGS]},
    "additionalProperties": {"anyOf": [{"const": False}, {"type": "string"}]},
}
"""Its part of the JSON Schema; which texts a setting takes is told when the file is read."""
