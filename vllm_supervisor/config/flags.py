"""What this tool knows of the flags of `vllm serve`: which are its own, which it reads, which it refuses.

`arguments:` takes any other flag here. vLLM adds and drops flags with every release, so a list of all of them would be
wrong on most hosts; which ones there are is asked of the vLLM that is to run, when the service is applied.

Source of the spellings: `FlexibleArgumentParser` and `EngineArgs.add_cli_args` of vLLM 0.32.0. Underscores count as
dashes up to the first dot, and argparse takes any unambiguous beginning of a flag for the flag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from vllm_supervisor.config import secrets
from vllm_supervisor.redact import is_secret

FLAG = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?:\.[A-Za-z0-9_]+)*")

_MAX = 255  # characters of a flag with its dots; far more than any has
_OWN_KEY = "it has a key of its own"
_READABLE = "every user of the host can read a secret on a command line"
_NO_HTTP = "without HTTP on a port nothing can tell when the service is ready"

# Flag -> why it may not be given, and what to do instead.
REFUSED: Mapping[str, tuple[str, str]] = {
    "model": (_OWN_KEY, "set the service's `model:`"),
    "port": (_OWN_KEY, "set the service's `port:`"),
    "host": (_OWN_KEY, "set the service's `host:`"),
    "max-num-seqs": (_OWN_KEY, "set the service's `max_num_seqs:`"),
    "device-ids": (_OWN_KEY, "list the GPUs under the service's `gpus:`"),
    "api-key": (_READABLE, secrets.API_KEY),
    "hf-token": (_READABLE, "give the token's file as `credentials: {HF_TOKEN: /path}`"),
    "uds": (_NO_HTTP, "serve on `host:` and `port:`"),
    "grpc": (_NO_HTTP, "remove it"),
    "headless": (_NO_HTTP, "remove it: nodes that serve nothing by themselves cannot be run here"),
    "help": ("vLLM would print its help and leave", "remove it"),
}
# Flags whose value is read here; an abbreviation of one would be overlooked.
READ = frozenset(
    {
        "config",
        "data-parallel-rank",
        "data-parallel-size",
        "data-parallel-size-local",
        "device-memory-utilization",
        "distributed-executor-backend",
        "gpu-memory-utilization",
        "max-num-batched-tokens",
        "nnodes",
        "pipeline-parallel-size",
        "prefill-context-parallel-size",
        "served-model-name",
        "shutdown-timeout",
        "ssl-certfile",
        "ssl-keyfile",
        "tensor-parallel-size",
    }
)
# One flag under two names: the older name works in every release.
ALIASES: Mapping[str, str] = {"device-memory-utilization": "gpu-memory-utilization"}
# vLLM's short options have one dash; as a long flag they do not exist.
SHORT: Mapping[str, str] = {
    "O": "optimization-level",
    "ac": "attention-config",
    "asc": "api-server-count",
    "cc": "compilation-config",
    "dcp": "decode-context-parallel-size",
    "dp": "data-parallel-size",
    "dpa": "data-parallel-address",
    "dpb": "data-parallel-backend",
    "dpl": "data-parallel-size-local",
    "dpn": "data-parallel-rank",
    "dpp": "data-parallel-rpc-port",
    "dpr": "data-parallel-start-rank",
    "n": "nnodes",
    "pcp": "prefill-context-parallel-size",
    "pp": "pipeline-parallel-size",
    "q": "quantization",
    "r": "node-rank",
    "sc": "speculative-config",
    "tp": "tensor-parallel-size",
}


def normal(key: str) -> str:
    """The key as vLLM reads it: underscores are dashes up to the first dot, one name per flag."""
    flag, dot, rest = key.partition(".")
    flag = flag.replace("_", "-")
    return ALIASES.get(flag, flag) + dot + rest


def complaint(key: str) -> tuple[str, str] | None:
    """Why a (normal) key may not stand under `arguments:`, and what to do; None if it may."""
    bare = key.lstrip("-").partition("=")[0].strip()
    flag = normal(bare).partition(".")[0]
    if flag in REFUSED:
        return REFUSED[flag]
    if bare in SHORT:
        return "a short option of vLLM", f"write `{SHORT[bare]}`"
    if key != bare:
        shown = bare if FLAG.fullmatch(bare) else "FLAG"  # what follows the flag may be a secret
        return "a flag is written without leading dashes and without `=`", f"write `{shown}: VALUE`"
    if not FLAG.fullmatch(key) or len(key) > _MAX:
        return "not the name of a flag", "write it as `vllm serve --help` does, without the dashes"
    if flag.startswith("no-"):
        return "a switch that is off is written as false", f"write `{flag.removeprefix('no-')}: false`"
    if any(map(is_secret, key.split("."))):
        return _READABLE, "give vLLM a file of root's that holds it, loaded under `credentials:`"
    if whole := _abbreviated(flag):
        _, hint = REFUSED.get(whole, ("", f"write `{whole}`"))
        return f"vLLM may take it for an abbreviation of `{whole}`", hint
    return None


def holds_secret(key: str) -> bool:
    """Whether what was written there must not be repeated in a message."""
    flag = normal(key.lstrip("-"))
    return flag.startswith(("api-k", "hf-t")) or any(map(is_secret, flag.partition("=")[0].split(".")))


def _abbreviated(flag: str) -> str | None:
    known = sorted(REFUSED.keys() | READ)
    return None if flag in known else next((whole for whole in known if whole.startswith(flag)), None)


def conflicts(arguments: Mapping[str, object]) -> Iterator[str]:
    """Keys with a dot whose flag is also given whole: vLLM would drop one of the two."""
    return (key for key in arguments if "." in key and key.partition(".")[0] in arguments)
