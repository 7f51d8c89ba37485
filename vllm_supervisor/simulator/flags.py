"""The flags of `vllm serve`: their names, and reading a command line as its parser does.

`--config` and parallelism other than tensor parallelism are accepted and have no effect.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

# Every flag of `vllm serve --help=all` in 0.32.0, in its order (the order of `non-default args`): NAME or NAME/ALIAS,
# then nothing for a switch, `=` for one value, `+` for one or more; then i, f, h, j for an integer, a float, an integer
# that may be written 128k, JSON.
_FLAGS = """
headless api-server-count/asc=i config= grpc lora-modules+ chat-template= chat-template-content-format=
trust-request-chat-template trust-request-mm-kwargs default-chat-template-kwargs=j response-role=
return-tokens-as-token-ids enable-auto-tool-choice exclude-tools-when-tool-choice-none tool-call-parser=
tool-parser-plugin= tool-strict-level= tool-server= max-log-len=i enable-prompt-tokens-details
enable-per-request-metrics enable-server-load-tracking enable-force-include-usage sse-keep-alive-interval=i
enable-tokenizer-info-endpoint enable-log-outputs enable-log-deltas cohere-is-reasoning-model cohere-format=
anthropic-disabled-thinking-effort= log-error-stack tokens-only enable-scale-out fingerprint-mode= fingerprint-value=
host= port=i grpc-port=i data-parallel-supervisor-port=i dp-supervisor-probe-interval-s=f
dp-supervisor-probe-timeout-s=f dp-supervisor-probe-failure-threshold=i uds= uvicorn-log-level=
disable-uvicorn-access-log disable-access-log-for-endpoints= allow-credentials allowed-origins=j allowed-methods=j
allowed-headers=j api-key+ ssl-keyfile= ssl-certfile= ssl-ca-certs= enable-ssl-refresh ssl-cert-reqs=i ssl-ciphers=
root-path= middleware= enable-request-id-headers disable-fastapi-docs h11-max-incomplete-event-size=i
h11-max-header-count=i enable-offline-docs enable-flash-late-interaction model= runner= convert= tokenizer=
tokenizer-mode= trust-remote-code dtype= seed=i hf-config-path= allowed-local-media-path= allowed-media-domains+
revision= code-revision= tokenizer-revision= max-model-len=h quantization/q= quantization-config=j
allow-deprecated-quantization enforce-eager enable-return-routed-experts return-sampling-mask max-logprobs=i
logprobs-mode= use-fp64-gumbel enable-trace-replay disable-sliding-window disable-cascade-attn skip-tokenizer-init
enable-prompt-embeds served-model-name+ config-format= hf-token= hf-overrides=j model-class-overrides=j
pooler-config=j generation-config= override-generation-config=j enable-sleep-mode sleep-mode-offload-cudagraph
sleep-preserve-parameter-names+ enable-cumem-allocator enable-nccl-comm-suspend model-impl= logits-processors+
io-processor-plugin= renderer-num-workers=i load-format= download-dir= safetensors-load-strategy=
safetensors-prefetch-num-threads=i safetensors-prefetch-block-size=h model-loader-extra-config=j ignore-patterns+
use-tqdm-on-load pt-load-map-location=j attention-backend= mamba-backend= mamba-ssu-algorithm=
enable-mamba-cache-stochastic-rounding mamba-cache-philox-rounds=i reasoning-parser= reasoning-parser-plugin=
distributed-executor-backend= pipeline-parallel-size/pp=i master-addr= master-port=i nnodes/n=i node-rank/r=i
distributed-timeout-seconds=i cpu-distributed-timeout-seconds=i numa-bind numa-bind-nodes+i numa-bind-cpus+
device-ids= tensor-parallel-size/tp=i decode-context-parallel-size/dcp=i dcp-comm-backend= dcp-q-replicate
dcp-kv-cache-interleave-size=i cp-kv-cache-interleave-size=i prefill-context-parallel-size/pcp=i
data-parallel-size/dp=i data-parallel-rank/dpn=i data-parallel-start-rank/dpr=i data-parallel-size-local/dpl=i
data-parallel-address/dpa= data-parallel-rpc-port/dpp=i data-parallel-backend/dpb= data-parallel-hybrid-lb/dph
data-parallel-external-lb/dpe data-parallel-multi-port-external-lb/dpm enable-hc-sp enable-expert-parallel/ep
enable-batch-sharded-sampling enable-ep-weight-filter all2all-backend= enable-dbo enable-shm-tensor-arena
ubatch-size=i enable-elastic-ep elastic-ep-max-dp-size=i dbo-decode-token-threshold=i dp-sync-interval=i
dbo-prefill-token-threshold=i disable-nccl-for-dp-synchronization enable-eplb eplb-config=j expert-placement-strategy=
max-parallel-loading-workers=i ray-workers-use-nsight disable-custom-all-reduce worker-cls= worker-extension-cls=
enable-fault-tolerance fault-tolerance-config=j block-size=i gpu-memory-utilization=f kv-cache-memory-bytes=h
kv-cache-dtype= num-gpu-blocks-override=i enable-prefix-caching prefix-caching-hash-algo=
prefix-cache-retention-interval=i kv-cache-dtype-skip-layers+ kv-sharing-fast-prefill swa-bounded-replay
mamba-cache-dtype= mamba-ssm-cache-dtype= mamba-block-size=i prefix-match-unit=i mamba-cache-mode=
enable-mamba-shared-prefix-checkpoint replayssm-buffer-len=i use-replayssm kv-offloading-size=f kv-offloading-backend=
offload-backend= cpu-offload-gb=f cpu-offload-params+ offload-group-size=i offload-num-in-group=i
offload-prefetch-step=i offload-params+ language-model-only limit-mm-per-prompt=j enable-mm-embeds media-io-kwargs=j
mm-processor-kwargs= mm-processor-cache-gb=f mm-processor-cache-type= mm-hasher-algorithm=
mm-shm-cache-max-object-size-mb=i mm-encoder-only mm-encoder-tp-mode= mm-encoder-attn-backend= mm-encoder-attn-dtype=
mm-encoder-fp8-scale-path= mm-encoder-fp8-scale-save-path= mm-encoder-fp8-scale-save-margin=f interleave-mm-strings
skip-mm-profiling video-pruning-rate=f video-pruning-method= mm-tensor-ipc= mm-processor-device=
mm-ipc-gpu-memory-gb=f mm-device-do-normalize enable-lora max-loras=i max-lora-rank=i lora-dtype=
enable-tower-connector-lora max-cpu-loras=i fully-sharded-loras lora-target-modules+ default-mm-loras=
specialize-active-lora enable-mixed-moe-lora-format enable-moe-shared-loras max-lora-cls-labels=i logging-config=j
log-level= log-config-file= show-hidden-metrics-for-version= otlp-traces-endpoint= collect-detailed-traces+
per-request-spec-decode-metrics= kv-cache-metrics kv-cache-metrics-sample=f custom-histogram-buckets=
cudagraph-metrics enable-layerwise-nvtx-tracing enable-mfu-metrics enable-logging-iteration-details jit-monitor-mode=
jit-monitor-verbose max-num-batched-tokens=h max-num-scheduled-tokens=h max-num-seqs=i max-num-active-seqs=i
max-num-queued-reqs=i max-num-queued-tokens=h long-prefill-token-threshold=i long-prefill-token-threshold-adaptive
scheduling-policy= enable-chunked-prefill disable-chunked-mm-input scheduler-cls= scheduler-reserve-full-isl
watermark=f prefill-schedule-interval=i disable-hybrid-kv-cache-manager async-scheduling stream-interval=i
cudagraph-capture-sizes+i max-cudagraph-capture-size=i ir-op-priority=j enable-flashinfer-autotune moe-backend=
linear-backend= sparse-indexer-topk-backend= speculative-config/sc=j spec-method= spec-model= spec-tokens=i
watermark-config=j diffusion-config/dc=j kv-transfer-config=j kv-events-config=j ec-transfer-config=j
ec-manager-config=j compilation-config/cc=j attention-config/ac=j engram-config=j reasoning-config=j kernel-config=j
additional-config=j structured-outputs-config=j aux-output-config=j profiler-config=j optimization-level=
performance-mode= weight-transfer-config=j disable-log-stats aggregate-engine-logging fail-on-environ-validation
shutdown-timeout=i gdn-prefill-backend= kda-prefill-backend= kda-decode-backend= enable-log-requests
"""

# Flags of older releases, and the first release that refuses them.
_RETIRED = "cuda-graph-sizes+i:0.13 task=:0.13 disable-log-requests:0.17 swap-space=f:0.18"


class UsageError(Exception):
    """A command line that argparse refuses; the text is its last line, without `vllm: ` in front."""


class CommandLine(NamedTuple):
    """What was given: the model (or an empty string) and values by destination name, in the parser's order."""

    model: str
    values: dict[str, Any]


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("vllm").lstrip()
        raise UsageError(f"{command}: error: {message}" if command else f"error: {message}")


def parse(words: Sequence[str], release: tuple[int, ...]) -> CommandLine:
    """Read what follows `vllm serve`.

    Raises:
        UsageError: an unknown flag, a missing value, or one of the wrong form.
        SystemExit: help was asked for, and printed.
    """
    parser = _Parser(prog="vllm")
    serve = parser.add_subparsers(dest="subparser").add_parser("serve", usage="vllm serve [model_tag] [options]")
    serve.add_argument("model_tag", nargs="?", default="")
    order = [_add(serve, entry) for entry in _entries(release)]
    given = vars(parser.parse_args(["serve", *_plain(words)]))
    return CommandLine(given["model_tag"], {key: given[key] for key in order if key in given})


def _entries(release: tuple[int, ...]) -> list[str]:
    """The flags of a release, in the notation above."""
    retired = (entry.rpartition(":") for entry in _RETIRED.split())
    return [*_FLAGS.split(), *(entry for entry, _, until in retired if release < version(until))]


def _add(parser: argparse.ArgumentParser, entry: str) -> str:
    """Add one flag; the name its value gets."""
    names, arity, kind = next((parts for mark in "=+" if (parts := entry.partition(mark))[1]), (entry, "", ""))
    name, _, alias = names.partition("/")
    options = [f"--{name}", f"-{alias}"] if alias else [f"--{name}"]
    if not arity:
        action = parser.add_argument(*options, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS)
    else:
        nargs = "+" if arity == "+" else None
        action = parser.add_argument(*options, nargs=nargs, type=_KINDS[kind], default=argparse.SUPPRESS)
    return action.dest


def _plain(words: Sequence[str]) -> list[str]:
    """The words as argparse can take them: dashes in names, and `--flag.key value` gathered as JSON of `--flag`."""
    plain: list[str] = []
    below: dict[str, dict[str, str]] = {}
    rest = iter(words)
    for word in rest:
        spelled, equals, value = word.partition("=")
        flag, dot, key = spelled.partition(".")
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        if flag.startswith("-") and dot:
            below.setdefault(flag, {})[key] = value if equals else next(rest, "")
        else:
            plain.append(f"{flag}{dot}{key}{equals}{value}" if flag.startswith("--") else word)
    return plain + [part for flag, keys in below.items() for part in (flag, json.dumps(keys))]


def version(text: str) -> tuple[int, ...]:
    """`0.12.0.post2` as a tuple of its leading numbers, for comparison."""
    numbers: list[int] = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


def human_readable_int(text: str) -> int:
    """`131072`, `128k` (thousands), `128K` (1024s), `auto` as -1. argparse puts its name into messages."""
    if text == "auto":
        return -1
    factors = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    if text[-1:] in factors:
        return int(float(text[:-1]) * factors[text[-1]])
    return int(text)


_KINDS: dict[str, Callable[[str], Any]] = {
    "": str,
    "i": int,
    "f": float,
    "h": human_readable_int,
    "j": json.loads,
}
