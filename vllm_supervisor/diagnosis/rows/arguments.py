"""What the operator asked for and vLLM refuses: flags, values, and combinations of them."""

from __future__ import annotations

import re

from vllm_supervisor.diagnosis.model import Act, Phase, Rank
from vllm_supervisor.diagnosis.rows.samples import error, info, invalid, warning
from vllm_supervisor.diagnosis.rule import Rule

_VALIDATION = frozenset({"ValidationError", "ValueError", "AssertionError"})
_SYSTEMD = frozenset({"systemd"})

RULES = (
    Rule(
        id="bad-flag",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="vLLM does not know a flag, or cannot read its value. Flags come and go with releases.",
        advice="correct the flag under `arguments:`; `vllm serve --help=all` of the installed version lists them",
        pattern=re.compile(
            r"(?:vllm(?: serve)?|api_server\.py): error: "
            r"(?:unrecognized arguments|argument |ambiguous option|the following)"
        ),
        anchors=("error",),
        bare=True,
        certain=True,
        samples=(
            "vllm: error: unrecognized arguments: --max-num-seq-typo 4",
            "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'",
            "(APIServer pid=7) vllm: error: ambiguous option: --max could match --max-num-seqs, --max-model-len",
            "vllm serve: error: the following arguments are required: model_tag",
            "api_server.py: error: unrecognized arguments: --swap-space 8",
        ),
        near_misses=(info("vllm: error: unrecognized arguments: --x"), "myscript: error: unrecognized arguments: --x"),
    ),
    Rule(
        id="usage",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="`vllm serve` ended with exit status 2: its command line is wrong.",
        advice="correct the flags under `arguments:`; `vllm serve --help=all` of the installed version lists them",
        pattern=re.compile(r"exited ExecStart code=exited status=2$"),
        anchors=("exited",),
        exceptions=_SYSTEMD,
        rank=Rank.CONSEQUENCE,
        samples=("vllm-a.service: Main process exited, code=exited, status=2/INVALIDARGUMENT",),
        near_misses=("vllm-a.service: Main process exited, code=exited, status=1/FAILURE",),
    ),
    Rule(
        id="batched-tokens",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="max-num-batched-tokens is smaller than max-num-seqs.",
        advice="make max-num-batched-tokens at least {max_num_seqs}, or max-num-seqs at most {max_num_batched_tokens}",
        pattern=re.compile(
            r"max_num_batched_tokens \((?P<max_num_batched_tokens>\d{1,9})\) must be greater than or equal to "
            r"max_num_seqs \((?P<max_num_seqs>\d{1,9})\)"
        ),
        anchors=("max_num_batched_tokens",),
        exceptions=_VALIDATION,
        certain=True,
        samples=(
            invalid(
                "SchedulerConfig",
                "  Value error, max_num_batched_tokens (512) must be greater than or equal to "
                "max_num_seqs (1024). [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]",
            ),
            error("ValueError: max_num_batched_tokens (448) must be greater than or equal to max_num_seqs (1024)."),
        ),
        near_misses=(
            warning("max_num_batched_tokens (8192) exceeds max_num_seqs * max_model_len (4096)."),
            warning(
                "The sequence length used for profiling (max_num_batched_tokens / max_num_seqs = 8192) is too short"
            ),
        ),
    ),
    Rule(
        id="context-over-model",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="max-model-len is longer than the model's own context, or than one batch without chunked prefill.",
        advice="lower max-model-len, or leave it out to take the model's own",
        pattern=re.compile(
            r"User-specified max_model_len \((?P<max_model_len_tokens>\d{1,12})\) is greater than the derived "
            r"max_model_len|max_num_batched_tokens \(\d{1,12}\) is smaller than max_model_len \(\d{1,12}\)"
        ),
        anchors=("max_model_len",),
        exceptions=_VALIDATION,
        certain=True,
        samples=(
            invalid(
                "ModelConfig",
                "  Value error, User-specified max_model_len (100000) is greater than the derived "
                "max_model_len (max_position_embeddings=4096.0 or model_max_length=None). [type=value_error]",
            ),
            error("ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (4096). This effectively"),
        ),
        near_misses=(info("Using max model len 512"), warning("User-specified max_model_len (8) is greater than")),
    ),
    Rule(
        id="tp-mismatch",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="The model cannot be split over this many GPUs.",
        advice="set tensor-parallel-size to a number that divides the model's attention heads[[ ({heads})]]",
        pattern=re.compile(
            r"Total number of attention heads \((?P<heads>\d{1,6})\) must be divisible by tensor parallel size"
            r"|\d{1,9} is not divisible by \d{1,6}$"
        ),
        anchors=("divisible",),
        exceptions=_VALIDATION,
        certain=True,
        samples=(
            invalid(
                "VllmConfig",
                "  Value error, Total number of attention heads (2) must be divisible by tensor "
                "parallel size (3). [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]",
            ),
            error("AssertionError: 152064 is not divisible by 7"),
        ),
        near_misses=(warning("Total number of attention heads (2) must be divisible by tensor parallel size (3)."),),
    ),
    Rule(
        id="too-few-gpus",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="More GPUs are asked for than this host has, or shows to the service.",
        advice="lower tensor-parallel-size, pipeline-parallel-size or data-parallel-size[[ (together {world_size})]], "
        "or list more `gpus:`",
        pattern=re.compile(
            r"World size \((?P<world_size>\d{1,6})\) is larger than the number of available GPUs"
            r"|(?:DP adjusted )?local rank \d{1,6} is out of bounds|(?:CUDA|HIP) error: invalid device ordinal"
        ),
        anchors=("World", "bounds", "ordinal"),
        certain=True,
        samples=(
            invalid(
                "ParallelConfig",
                "  Value error, World size (16) is larger than the number of available GPUs (8) in "
                "this node. [type=value_error]",
            ),
            error("RuntimeError: CUDA error: invalid device ordinal"),
            error("AssertionError: DP adjusted local rank 8 is out of bounds."),
        ),
        near_misses=(info("World size (2) fits the number of available GPUs (8)"),),
    ),
    Rule(
        id="gpu-id",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="0.7 to 0.2x",
        title="CUDA_VISIBLE_DEVICES names a GPU by UUID, which this vLLM cannot read.",
        advice="list `gpus:` by number instead of GPU-… or MIG-… names, or upgrade vLLM",
        pattern=re.compile(r"invalid literal for int\(\) with base 10: '(?:MIG|GPU)-"),
        anchors=("MIG", "GPU"),
        exceptions=frozenset({"ValueError", "ValidationError"}),
        samples=(error("ValueError: invalid literal for int() with base 10: 'MIG-41b36c12-0a4c'"),),
        near_misses=(error("ValueError: invalid literal for int() with base 10: 'many'"),),
    ),
)

# The last row of all: it takes every refusal that no other row knows.
ANY_REFUSAL = (
    Rule(
        id="bad-value",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="0.9 to 0.33",
        title="vLLM refuses a value, or a combination of them.",
        advice="correct the value that is quoted under `arguments:`",
        pattern=re.compile(r"[^\n]{1,2000}"),
        exceptions=frozenset({"ValidationError"}),
        rank=Rank.GENERAL,
        certain=True,
        samples=(
            invalid(
                "SchedulerConfig",
                "max_num_seqs",
                "  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, input_type=int]",
            ),
            invalid("CacheConfig"),
        ),
        near_misses=(info("pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig"),),
    ),
)
