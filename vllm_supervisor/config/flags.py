"""What this tool knows of the flags of `vllm serve`: which are its own, which it reads, which it refuses.

`arguments:` takes any other flag unseen. vLLM adds and drops flags with every release, so a list of all of them would
be wrong on most hosts; a flag that vLLM does not know ends the start with exit status 2 and a clear line.

Source of the spellings: `FlexibleArgumentParser` and `EngineArgs.add_cli_args` of vLLM 0.32.0. Underscores count as
dashes up to the first dot, and argparse takes any unambiguous beginning of a flag for the flag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from vllm_supervisor.config import secrets

FLAG = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?:\.[A-Za-z0-9_]+)*")

# Flag -> what to do instead. They have a key of their own, hold a secret, or take away what readiness rests on.
REFUSED: Mapping[str, str] = {
    "model": "set the service's `model:`",
    "port": "set the service's `port:`",
    "host": "set the service's `host:`",
    "max-num-seqs": "set the service's `max_num_seqs:`",
    "device-ids": "list the GPUs under the service's `gpus:`",
    "api-key": secrets.API_KEY,
    "hf-token": "give the token's file as `credentials: {HF_TOKEN: /path}`",
    "uds": "serve on `host:` and `port:`: readiness and the canary request need them",
    "grpc": "remove it: without HTTP nothing tells when the service is ready",
    "headless": "remove it: a headless node answers no health check, so it would never count as ready",
    "help": "remove it: vLLM would print its help and leave",
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
        return "the tool sets this flag, or cannot work with it", REFUSED[flag]
    if bare in SHORT:
        return "a short option of vLLM", f"write `{SHORT[bare]}`"
    if key != bare:
        return "a flag is written without leading dashes and without `=`", f"write `{bare}: VALUE`"
    if not FLAG.fullmatch(key):
        return "not the name of a flag", "write it as `vllm serve --help` does, without the dashes"
    if flag.startswith("no-"):
        return "a switch that is off is written as false", f"write `{flag.removeprefix('no-')}: false`"
    if whole := _abbreviated(flag):
        return f"vLLM would take it for an abbreviation of `{whole}`", REFUSED.get(whole) or f"write `{whole}`"
    return None


def holds_secret(key: str) -> bool:
    """Whether the value of that flag must not be repeated in a message."""
    return normal(key.lstrip("-")) in ("api-key", "hf-token")


def _abbreviated(flag: str) -> str | None:
    known = sorted(REFUSED.keys() | READ)
    return None if flag in known else next((whole for whole in known if whole.startswith(flag)), None)


def conflicts(arguments: Mapping[str, object]) -> Iterator[str]:
    """Keys with a dot whose flag is also given whole: vLLM would drop one of the two."""
    return (key for key in arguments if "." in key and key.partition(".")[0] in arguments)
