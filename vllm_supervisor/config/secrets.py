"""Where a secret goes instead."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_supervisor.redact import is_secret

API_KEY = (
    "write `api-key: …` into a YAML file of root's, mode 0600, load it as `credentials: {vllm.yaml: FILE}`, and set "
    "`arguments: {config: /run/credentials/vllm-NAME.service/vllm.yaml}`"
)
IN_A_TEXT = (
    "give vLLM a file of root's that holds it, loaded under `credentials:`; a variable of which a part is secret goes "
    "into a file of root's, mode 0600, that a drop-in names: `EnvironmentFile=` (`systemctl edit vllm-NAME`)"
)
_UNREAD: Mapping[str, str] = {
    "VLLM_API_KEY": API_KEY,
    "HUGGING_FACE_HUB_TOKEN": "call it HF_TOKEN",
}


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
