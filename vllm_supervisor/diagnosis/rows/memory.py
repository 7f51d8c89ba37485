"""Memory: the sampler, the pooler, the Mamba bound, a card that is not free, and everything else that runs out of it.

The texts are vLLM's (0.8 to 0.33) and torch's (2.6 to 2.14). Which part of the start a bare torch error belongs to is
told by the functions in its traceback; their names are stable, their line numbers are not. It is over 300 lines since
each row carries its samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from vllm_supervisor.diagnosis.model import Act, Phase, Rank
from vllm_supervisor.diagnosis.rows.samples import READY, error, info, relayed, traceback, warning
from vllm_supervisor.diagnosis.rule import SIZE, Rule, When

_DEVICE_OOM = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) out of memory\.(?: Tried to allocate (?P<tried_gib>" + SIZE + r"|more than 1EB memory)\."
    r"(?: \S{1,8} (?P<gpu>\d{1,4}) has a total capacity of (?P<total_gib>" + SIZE + r")"
    r" of which (?P<free_gib>" + SIZE + r") is free)?)?"
    r"|(?:CUDA|HIP) error: out of memory"
    r"|CUDA error: CUBLAS_STATUS_ALLOC_FAILED"
    r"|Triton Error \[(?:CUDA|HIP)\]: out of memory"
    r"|[^\n]{0,100}would exceed allowed memory\. \(out of memory\)"
)
_OOM_WORDS = ("memory", "CUBLAS_STATUS_ALLOC_FAILED")
_TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 781.50 MiB. GPU 0 has a total capacity of 79.25 GiB "
    "of which 418.50 MiB is free. Including non-PyTorch memory, this process has 78.84 GiB memory in use."
)
_SHORTAGE = "[[ ({tried_gib} were asked for, {free_gib} were free)]]"


def _all(*names: str) -> frozenset[str]:
    return frozenset(names)


def _any(*names: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset({name}) for name in names)


def _largest_utilization(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """The largest `gpu-memory-utilization`, in steps of 0.01, that fits what is free now."""
    if not numbers["total_gib"]:
        return {}
    fits = math.floor(numbers["free_gib"] / numbers["total_gib"] * 100) / 100
    return {"fits_utilization": fits, "missing_gib": max(0.0, numbers["desired_gib"] - numbers["free_gib"])}


def _missing(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """How much larger the KV cache would have to be."""
    if "needed_gib" not in numbers or "available_gib" not in numbers:
        return {}
    return {"missing_gib": max(0.0, numbers["needed_gib"] - numbers["available_gib"])}


_SAMPLER = "CUDA out of memory occurred when warming up sampler with 512 dummy requests. Please try lowering `max_num_"
_POOLER = "CUDA out of memory occurred when warming up pooler (task='embed') with 256 dummy requests. Please try"
_MAMBA = (
    "max_num_seqs (1024) exceeds available Mamba cache blocks (969). Each decode sequence requires one Mamba cache "
    "block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most 969 or increase "
    "gpu_memory_utilization."
)
_BUSY = (
    "ValueError: Free memory on device cuda:0 (61.05/119.7 GiB) on startup is less than desired GPU memory utilization "
    "(0.52, 62.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)

SAMPLER = (
    Rule(
        id="sampler-oom",
        act=Act.LOWER,
        phase=Phase.WARM_UP,
        versions="0.8 to 0.33, model runner V1",
        title="The sampler's warm-up did not fit in GPU memory.",
        advice="lower max-num-seqs below {dummy_requests_seqs}, or gpu-memory-utilization by 0.02 to 0.05",
        pattern=re.compile(
            r"(?:CUDA|HIP|XPU|NPU) out of memory occurred when warming up sampler with "
            r"(?P<dummy_requests_seqs>\d{1,9}) dummy requests"
        ),
        anchors=("sampler",),
        exceptions=frozenset({"RuntimeError"}),
        rank=Rank.EXACT,
        certain=True,
        samples=(error(f"RuntimeError: {_SAMPLER}"), f"RuntimeError: {_SAMPLER}", relayed(_SAMPLER)),
        near_misses=(
            info(f"Received request chatcmpl-1: prompt: 'RuntimeError: {_SAMPLER}', params: SamplingParams(n=1)"),
            warning(f"RuntimeError: {_SAMPLER}"),
            error(f"cannot answer: 'RuntimeError: {_SAMPLER}'"),
            _SAMPLER,
            error(f"RuntimeError: {_SAMPLER.replace('sampler', 'kernels')}"),
            READY + error(f"RuntimeError: {_SAMPLER}"),
        ),
    ),
    Rule(
        id="pooler-oom",
        act=Act.LOWER,
        phase=Phase.WARM_UP,
        versions="0.9 to 0.33",
        title="The pooler's warm-up did not fit in GPU memory.",
        advice="lower max-num-seqs below {dummy_requests_seqs}, or gpu-memory-utilization by 0.02 to 0.05",
        pattern=re.compile(
            r"(?:CUDA|HIP|XPU|NPU) out of memory occurred when warming up pooler (?:\(task=[^)]{0,80}\) )?with "
            r"(?P<dummy_requests_seqs>\d{1,9}) dummy requests"
        ),
        anchors=("pooler",),
        exceptions=frozenset({"RuntimeError"}),
        rank=Rank.EXACT,
        certain=True,
        samples=(
            error(f"RuntimeError: {_POOLER}"),
            error(f"RuntimeError: {_POOLER.replace(chr(40) + 'task=' + repr('embed') + ') ', '')}"),
        ),
        near_misses=(info(f"RuntimeError: {_POOLER}"),),
    ),
    Rule(
        id="mamba-blocks",
        act=Act.SET,
        phase=Phase.KV_CACHE,
        versions="0.20 to 0.33",
        title="There are fewer Mamba cache blocks than sequences; the message names how many there are.",
        advice="set max-num-seqs to at most {fits_seqs}, or raise gpu-memory-utilization",
        pattern=re.compile(
            r"max_num_seqs \((?P<tried_seqs>\d{1,9})\) exceeds available Mamba cache blocks \(\d{1,9}\)\."
            r".{0,300}?lower max_num_seqs to at most (?P<fits_seqs>\d{1,9}) ",
            re.DOTALL,
        ),
        anchors=("Mamba",),
        exceptions=frozenset({"ValueError"}),
        rank=Rank.EXACT,
        certain=True,
        samples=(error(f"ValueError: {_MAMBA}"), relayed(_MAMBA)),
        near_misses=(warning(_MAMBA), error("ValueError: Mamba cache blocks cannot be used with this model.")),
    ),
    Rule(
        id="sampler-oom-frames",
        act=Act.LOWER,
        phase=Phase.WARM_UP,
        versions="0.8 to 0.33; the only sign of it on model runner V2",
        title="The sampler's warm-up did not fit in GPU memory; only the traceback tells.",
        advice="lower max-num-seqs, or gpu-memory-utilization by 0.02 to 0.05" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=(
            _all("_dummy_sampler_run"),
            _all("warmup_kernels", "sample_tokens"),
            _all("_warmup_kernels", "sample_tokens"),
        ),
        samples=(
            traceback("model_runner.py:profile_run", "model_runner.py:_dummy_sampler_run", last=_TORCH),
            traceback("warmup.py:_warmup_kernels", "model_runner.py:sample_tokens", "sampler.py:__call__", last=_TORCH),
            traceback("warmup.py:warmup_kernels", "gpu_worker.py:sample_tokens", last=_TORCH),
        ),
        near_misses=(
            traceback("warmup.py:_warmup_kernels", "gpu_worker.py:execute_model", last=_TORCH),
            traceback("gpu_worker.py:execute_model", "gpu_worker.py:sample_tokens", last=_TORCH),
            traceback("gpu_model_runner.py:_dummy_sampler_run", last="FileNotFoundError: [Errno 2] 'ninja'"),
            relayed(_TORCH.partition(": ")[2]),
        ),
    ),
    Rule(
        id="sampler-state-oom",
        act=Act.LOWER,
        phase=Phase.LOADING,
        versions="0.22 to 0.33, model runner V2",
        title="The sampler's state for each sequence (penalties, bad words, logit bias) did not fit in GPU memory.",
        advice="lower max-num-seqs, or gpu-memory-utilization by 0.02 to 0.05" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=_any("penalties.py:__init__", "bad_words.py:__init__", "logit_bias.py:__init__", "sampler.py:__init__"),
        samples=(traceback("model_runner.py:load_model", "penalties.py:__init__", last=_TORCH),),
        near_misses=(traceback("model_runner.py:load_model", "linear.py:__init__", last=_TORCH),),
    ),
    Rule(
        id="pooler-oom-frames",
        act=Act.LOWER,
        phase=Phase.WARM_UP,
        versions="0.9 to 0.33",
        title="The pooler's warm-up did not fit in GPU memory; only the traceback tells.",
        advice="lower max-num-seqs, or gpu-memory-utilization by 0.02 to 0.05" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=_any("_dummy_pooler_run", "_dummy_pooler_run_task", "dummy_pooler_run"),
        samples=(traceback("runner.py:profile_run", "runner.py:_dummy_pooler_run_task", last=_TORCH),),
        near_misses=(traceback("runner.py:profile_run", "runner.py:_dummy_run", last=_TORCH),),
    ),
)

CARD = (
    Rule(
        id="gpu-busy",
        act=Act.WAIT,
        phase=Phase.STARTING,
        versions="0.9 to 0.33",
        title="Something else holds the GPU's memory: less is free than the service is to take.",
        advice="free the GPU[[: {missing_gib} are missing]], or lower gpu-memory-utilization[[ to at most "
        "{fits_utilization}]]",
        pattern=re.compile(
            r"Free memory on device (?:\S{1,20} )?\((?P<free_gib>[\d.]{1,12})/(?P<total_gib>[\d.]{1,12}) GiB\) "
            r"on startup is less than (?:desired GPU memory utilization|the engine's budget [^(\n]{0,100}) ?"
            r"\((?P<desired_utilization>[\d.]{1,12}), (?P<desired_gib>[\d.]{1,12}) GiB\)"
        ),
        anchors=("startup",),
        exceptions=frozenset({"ValueError"}),
        certain=True,
        derive=_largest_utilization,
        samples=(
            error(_BUSY),
            error(_BUSY.replace("cuda:0 ", "")),
            relayed(_BUSY.partition(": ")[2]),
            error(
                "ValueError: Free memory on device cuda:0 (20.12/79.25 GiB) on startup is less than the engine's "
                "budget after excluding external process's weights (0.9, 31.40 GiB). Decrease GPU memory utilization or"
            ),
        ),
        near_misses=(
            info("Free memory on device (77.57/79.11 GiB) on startup. Desired GPU memory utilization is (0.92, 72.78)"),
        ),
    ),
    Rule(
        id="profiling-disturbed",
        act=Act.WAIT,
        phase=Phase.PROFILING,
        versions="0.8 to 0.33",
        title="Another process gave GPU memory back while vLLM was measuring.",
        advice="start again once the other processes on the GPU are steady; start services that share a GPU in turn",
        pattern=re.compile(
            r"Error in memory profiling\. Initial free memory (?P<initial_gib>[\d.]{1,12})(?: GiB)?, "
            r"current free memory (?P<current_gib>[\d.]{1,12})"
        ),
        anchors=("profiling",),
        exceptions=frozenset({"AssertionError"}),
        certain=True,
        samples=(
            error(
                "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current free memory 90.17 "
                "GiB. This happens when other processes sharing the same container release GPU memory"
            ),
        ),
        near_misses=(info("Memory profiling takes 0.7 seconds"), error("AssertionError: Error in profiling.")),
    ),
)

KV_CACHE = (
    Rule(
        id="no-kv-cache",
        act=Act.REPORT,
        phase=Phase.KV_CACHE,
        versions="all",
        title="After weights and profile nothing is left for the KV cache.",
        advice="raise gpu-memory-utilization, or lower max-model-len, max-num-batched-tokens or max-num-seqs"
        "[[; {kv_available_gib} were left for the KV cache]]",
        pattern=re.compile(
            r"No available memory for the cache blocks\.|Cannot auto-fit max_model_len: not enough GPU memory available"
        ),
        anchors=("cache", "fit"),
        exceptions=frozenset({"ValueError"}),
        context=("kv_available_gib",),
        certain=True,
        samples=(
            error("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when"),
            error("ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even one token"),
            info("Available KV cache memory: -3.32 GiB")
            + "\n"
            + error("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
        ),
        near_misses=(info("No available memory for the cache blocks."), error("ValueError: No cache blocks.")),
    ),
    Rule(
        id="context-too-long",
        act=Act.REPORT,
        phase=Phase.KV_CACHE,
        versions="all",
        title="One request of the full context length does not fit in the KV cache.",
        advice="set max-model-len[[ to at most {estimated_tokens}]], or raise gpu-memory-utilization[[: the KV "
        "cache is {missing_gib} too small]]",
        pattern=re.compile(
            r"To serve at least one request with the models?'s max seq len \((?P<max_model_len_tokens>\d{1,12})\), "
            r"\(?(?P<needed_gib>[\d.]{1,12}) GiB KV cache is needed, which is larger than the available KV cache "
            r"memory \((?P<available_gib>-?[\d.]{1,12}) GiB\)"
            r"(?:.{0,80}?the estimated maximum model length is (?P<estimated_tokens>\d{1,12}))?"
            r"|The model's max seq len \((?P<max_model_len_tokens_v0>\d{1,12})\) is larger than the maximum number of "
            r"tokens that can be stored in KV cache \((?P<kv_cache_tokens>\d{1,12})\)",
            re.DOTALL,
        ),
        anchors=("seq",),
        exceptions=frozenset({"ValueError"}),
        certain=True,
        derive=_missing,
        samples=(
            error(
                "ValueError: To serve at least one request with the models's max seq len (16384), (1.07 GiB KV cache "
                "is needed, which is larger than the available KV cache memory (0.64 GiB). Based on the available "
                "memory, the estimated maximum model length is 9664. Try increasing `gpu_memory_utilization`"
            ),
            error(
                "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache "
                "is needed, which is larger than the available KV cache memory (4.10 GiB). Try increasing"
            ),
            error(
                "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be "
                "stored in KV cache (14000). Try increasing"
            ),
        ),
        near_misses=(warning("The model's max seq len (32768) is larger than 8192."),),
    ),
    Rule(
        id="oom-kv-cache",
        act=Act.REPORT,
        phase=Phase.KV_CACHE,
        versions="all",
        title="The KV cache itself did not fit in GPU memory.",
        advice="lower gpu-memory-utilization by 0.02 to 0.05, and see what else holds the GPU" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=_any(
            "initialize_kv_cache", "initialize_kv_cache_tensors", "_allocate_kv_cache_tensors", "allocate_kv_cache"
        ),
        samples=(traceback("gpu_worker.py:initialize_from_config", "runner.py:initialize_kv_cache", last=_TORCH),),
        near_misses=(traceback("abstract.py:initialize_from_config", "runner.py:capture_model", last=_TORCH),),
    ),
)

OTHER_PHASES = (
    Rule(
        id="oom-graph-capture",
        act=Act.REPORT,
        phase=Phase.GRAPH_CAPTURE,
        versions="all",
        title="Capturing CUDA graphs did not fit in GPU memory.",
        advice="lower gpu-memory-utilization by 0.01 to 0.05, capture fewer sizes, or add enforce-eager" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=_any("capture_model", "profile_cudagraph_memory", "_capture_cudagraphs", "_capture_budget_graph"),
        samples=(
            traceback("gpu_worker.py:compile_or_warm_up_model", "runner.py:capture_model", last=_TORCH),
            traceback("runner.py:capture_model", last="RuntimeError: CUDA error: out of memory"),
        ),
        near_misses=(
            info("Capturing cudagraphs for decoding. If out-of-memory error occurs during cudagraph capture, consider"),
            traceback("gpu_worker.py:compile_or_warm_up_model", "warmup.py:kernel_warmup", last=_TORCH),
        ),
    ),
    Rule(
        id="oom-deep-gemm",
        act=Act.REPORT,
        phase=Phase.WARM_UP,
        versions="0.10 to 0.33",
        title="DeepGEMM's warm-up did not fit in GPU memory.",
        advice="lower max-num-batched-tokens, or set VLLM_DEEP_GEMM_WARMUP=skip in the environment" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=_any("deep_gemm_warmup", "deepgemm_warmup"),
        samples=(traceback("kernel_warmup.py:kernel_warmup", "warmup.py:deep_gemm_warmup", last=_TORCH),),
        near_misses=(traceback("kernel_warmup.py:kernel_warmup", last=_TORCH),),
    ),
    Rule(
        id="oom-autotune",
        act=Act.REPORT,
        phase=Phase.WARM_UP,
        versions="0.11 to 0.33",
        title="Autotuning FlashInfer's kernels did not fit in GPU memory.",
        advice="add no-enable-flashinfer-autotune, or lower gpu-memory-utilization by 0.02 to 0.05" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=_any("flashinfer_autotune"),
        samples=(traceback("kernel_warmup.py:kernel_warmup", "kernel_warmup.py:flashinfer_autotune", last=_TORCH),),
        near_misses=(
            "[Autotuner]: OOM detected, falling back to default tactic",
            warning("[Autotuner]: OOM detected, falling back to default tactic"),
        ),
    ),
    Rule(
        id="oom-compile",
        act=Act.REPORT,
        phase=Phase.PROFILING,
        versions="all",
        title="torch.compile ran out of GPU memory while it tried kernels out.",
        advice="lower gpu-memory-utilization by 0.02 to 0.05, or add enforce-eager" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=_any(
            "compile_fx_inner", "fx_codegen_and_compile", "codegen_and_compile", "benchmark_all_configs", "do_bench"
        ),
        samples=(traceback("runner.py:profile_run", "compile_fx.py:compile_fx_inner", last=_TORCH),),
        near_misses=(traceback("runner.py:profile_run", "eval_frame.py:compile_wrapper", last=_TORCH),),
    ),
    Rule(
        id="oom-warm-up",
        act=Act.REPORT,
        phase=Phase.WARM_UP,
        versions="0.10 to 0.33",
        title="A warm-up after the KV cache did not fit in GPU memory: kernels or the forward pass, not the sampler.",
        advice="lower gpu-memory-utilization by 0.02 to 0.05, or max-num-batched-tokens" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=_any("kernel_warmup", "warmup_kernels", "_warmup_kernels", "compile_or_warm_up_model"),
        samples=(
            traceback("gpu_worker.py:compile_or_warm_up_model", "kernel_warmup.py:kernel_warmup", last=_TORCH),
            traceback("warmup.py:_warmup_kernels", "gpu_worker.py:execute_model", last=_TORCH),
        ),
        near_misses=(traceback("gpu_worker.py:compile_or_warm_up_model", last="ImportError: no module"),),
    ),
    Rule(
        id="oom-profile",
        act=Act.REPORT,
        phase=Phase.PROFILING,
        versions="all",
        title="The profiling run of the model did not fit in GPU memory.",
        advice="lower max-num-batched-tokens, max-model-len or limit-mm-per-prompt, or use more GPUs" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=_any("profile_run", "determine_available_memory", "determine_num_available_blocks", "_dummy_run"),
        samples=(traceback("worker.py:determine_available_memory", "runner.py:profile_run", last=_TORCH),),
        near_misses=(traceback("runner.py:load_model", "llama.py:__init__", last=_TORCH),),
    ),
    Rule(
        id="oom-weights",
        act=Act.REPORT,
        phase=Phase.LOADING,
        versions="0.13 to 0.33, model runner V1",
        title="The weights do not fit in GPU memory.",
        advice="use more GPUs (tensor-parallel-size), a quantised model, or larger cards",
        pattern=re.compile(r"Failed to load model - not enough GPU memory\."),
        anchors=("enough",),
        rank=Rank.EXACT,
        samples=(error("Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free"),),
        near_misses=(warning("Failed to load model - not enough GPU memory."), error("Failed to load model: no file")),
    ),
    Rule(
        id="oom-weights-frames",
        act=Act.REPORT,
        phase=Phase.LOADING,
        versions="all",
        title="The weights do not fit in GPU memory; only the traceback tells.",
        advice="use more GPUs (tensor-parallel-size), a quantised model, or larger cards" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        frames=_any("load_model", "load_draft_model", "load_weights", "process_weights_after_loading"),
        samples=(
            traceback("gpu_worker.py:load_model", "llama.py:__init__", last=_TORCH),
            traceback("speculator.py:load_draft_model", last=_TORCH.replace("CUDA", "HIP")),
            traceback("gpu_worker.py:load_model", last="torch.OutOfMemoryError: XPU out of memory."),
        ),
        near_misses=(traceback("gpu_worker.py:load_model", last="RuntimeError: CUDA error: unknown error"),),
    ),
    Rule(
        id="oom-serving",
        act=Act.REPORT,
        phase=Phase.READY,
        versions="all",
        title="GPU memory ran out while serving: the start had fitted, a request did not.",
        advice="lower gpu-memory-utilization by 0.02 to 0.05 to leave room, or max-num-batched-tokens" + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        when=When.SERVING,
        samples=(READY + error(_TORCH) + "\n" + error("EngineCore encountered a fatal error."),),
        near_misses=(error(_TORCH), READY + info(f"Received request cmpl-1: prompt: '{_TORCH}', params: None")),
    ),
    Rule(
        id="oom-unplaced",
        act=Act.REPORT,
        phase=None,
        versions="all",
        title="GPU memory ran out, and the log does not tell what was being done.",
        advice="look at the log of the rank that failed; lower gpu-memory-utilization, max-model-len or max-num-seqs"
        + _SHORTAGE,
        pattern=_DEVICE_OOM,
        anchors=_OOM_WORDS,
        rank=Rank.GENERAL,
        samples=(
            _TORCH,
            relayed(_TORCH.partition(": ")[2]),
            _TORCH.replace("418.50 MiB", "0 bytes"),
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
            "RuntimeError: CUDA error: out of memory",
            "torch.AcceleratorError: HIP error: out of memory",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            error("RuntimeError: Triton Error [CUDA]: out of memory"),
            "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
        ),
        near_misses=(
            info("CUDA graphs can take additional 1~3 GiB memory per GPU. If you are running out of memory, consider"),
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 1",
            "P2P-NCCL Recv Tensor, Out Of Memory",
        ),
    ),
)

RULES = (*SAMPLER, *CARD, *KV_CACHE, *OTHER_PHASES)
