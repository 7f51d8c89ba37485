"""Which names hold secrets, and where a secret goes instead."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET = re.compile(r".*(?:_SECRET|PASSWORD|API_?KEY).*|.*_TOKEN|TOKEN|SECRET.*", re.IGNORECASE)
# Switches whose names only sound like secrets.
_HARMLESS = frozenset({"HF_HUB_DISABLE_IMPLICIT_TOKEN"})

API_KEY = (
    "write `api-key: …` into a YAML file of root's, mode 0600, load it as `credentials: {vllm.yaml: FILE}`, and set "
    "`arguments: {config: /run/credentials/vllm-NAME.service/vllm.yaml}`"
)
_UNREAD: Mapping[str, str] = {
    "VLLM_API_KEY": API_KEY,
    "HUGGING_FACE_HUB_TOKEN": "call it HF_TOKEN",
}


def is_secret(name: str) -> bool:
    """Whether what has that name, written with underscores, is a secret."""
    return name not in _HARMLESS and _SECRET.fullmatch(name) is not None


def way_out(variable: str) -> str | None:
    """Where the secret in a variable of that name belongs; None if the name is no secret's."""
    if not is_secret(variable):
        return None
    if variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        return "give its file as `credentials: {HF_TOKEN: /path}`"
    if variable == "VLLM_API_KEY":
        return API_KEY
    return (
        f"give its file as `credentials: {{{variable}: /path}}` and point the program at "
        f"/run/credentials/vllm-NAME.service/{variable}"
    )


def unread(credential: str) -> str | None:
    """What to do instead with a credential whose name promises what no program does; None for all others."""
    return _UNREAD.get(credential)
