"""The model: where it is, whether it may be read, whether it is whole, and whether this vLLM can run it."""

from __future__ import annotations

import re

from vllm_supervisor.diagnosis.model import Act, Phase, Rank
from vllm_supervisor.diagnosis.rows.samples import error, info, invalid, warning
from vllm_supervisor.diagnosis.rule import Rule

_ANY_TEXT = re.compile(r"[^\n]{0,2000}")

RULES = (
    Rule(
        id="model-gated",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="The model is behind a gate: there is no token, or it has no access.",
        advice="accept the model's terms on the hub, and give the service a token: HF_TOKEN under `credentials:`",
        pattern=re.compile(
            r"You are trying to access a gated repo|(?:401|403) Client Error|Access to model \S{1,200} is restricted"
            r"|Cannot access gated repo"
        ),
        anchors=("gated", "Client", "restricted", "GatedRepoError"),
        samples=(
            error("OSError: You are trying to access a gated repo."),
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-68)",
            error("OSError: Cannot access gated repo for url https://huggingface.co/x/y/resolve/main/config.json."),
            error("OSError: Access to model x/y is restricted. You must have access to it and be authenticated"),
            "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/x/resolve/main/c",
        ),
        near_misses=(warning("401 Client Error: no telemetry"), error("HTTPError: 404 Client Error: Not Found")),
    ),
    Rule(
        id="model-missing",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="The model is not there: a path that does not exist is taken for the name of a repository.",
        advice="check `model:`: the directory must exist, be readable for the service's user, and hold config.json and "
        "weights; a repository is named owner/name",
        pattern=re.compile(
            r"Invalid repository ID or local directory specified|Repo id must be in the form|"
            r"Repo id must use alphanumeric|404 Client Error|Could not detect config format for no config file found|"
            r"Cannot find any model weights with|Can't load the configuration of|"
            r"[^\n]{1,300} is not a local folder and is not a valid model identifier|"
            r"It looks like the config file at '|Unrecognized model in |"
            r"\[Errno 2\] No such file or directory: '[^'\n]{0,300}config\.json"
        ),
        anchors=("Invalid", "Repo", "Client", "config", "weights", "configuration", "identifier", "Unrecognized"),
        samples=(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_na",
            error("ValueError: Invalid repository ID or local directory specified: '/opt/models/x'."),
            "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-68)",
            error("RuntimeError: Cannot find any model weights with `/opt/models/empty`"),
            "huggingface_hub.errors.HFValidationError: Repo id must use alphanumeric chars or '-', '_', '.'",
            error("ValueError: Could not detect config format for no config file found. With config_format 'auto'"),
            error("OSError: Can't load the configuration of '/opt/models/x'. If you were trying to load it from"),
            error("OSError: x/y is not a local folder and is not a valid model identifier listed on the hub"),
            error("OSError: It looks like the config file at '/opt/models/x/config.json' is not a valid JSON file."),
            error("ValueError: Unrecognized model in /opt/models/x. Should have a `model_type` key in its config.json"),
            error("FileNotFoundError: [Errno 2] No such file or directory: '/opt/models/x/config.json'"),
        ),
        near_misses=(info("Invalid repository ID or local directory specified"), error("ValueError: Invalid value")),
    ),
    Rule(
        id="offline",
        act=Act.WAIT,
        phase=Phase.STARTING,
        versions="all",
        title="The hub could not be reached, and the model is not in the cache.",
        advice="start again once the network is there; or fetch the model first, or unset HF_HUB_OFFLINE",
        pattern=_ANY_TEXT,
        exceptions=frozenset(
            {
                "LocalEntryNotFoundError",
                "OfflineModeIsEnabled",
                "MaxRetryError",
                "NameResolutionError",
                "ConnectTimeout",
                "ReadTimeout",
                "ConnectTimeoutError",
                "ReadTimeoutError",
            }
        ),
        samples=(
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for",
            error("requests.exceptions.ReadTimeout: (ReadTimeoutError('HTTPSConnectionPool'), '(Request ID: 6)')"),
        ),
        near_misses=(warning("requests.exceptions.ReadTimeout: telemetry"), error("LookupError: no entry")),
    ),
    Rule(
        id="hub-unreachable",
        act=Act.WAIT,
        phase=Phase.STARTING,
        versions="all",
        title="The network to the model hub does not work.",
        advice="start again once the network is there; or fetch the model before, into the service's HF_HOME",
        pattern=re.compile(r"[^\n]{0,300}?(?:HTTPSConnectionPool\(host=|We couldn't connect to ')"),
        anchors=("HTTPSConnectionPool", "connect"),
        exceptions=frozenset({"ConnectionError", "ProxyError", "SSLError", "OSError"}),
        samples=(
            "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443",
            error("OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them"),
        ),
        near_misses=(warning("We couldn't connect to 'https://stats.vllm.ai'"), "ConnectionError: the engine is gone"),
    ),
    Rule(
        id="weights-corrupt",
        act=Act.REPORT,
        phase=Phase.LOADING,
        versions="all",
        title="A file of the weights is cut short or damaged, or does not belong to this model.",
        advice="fetch the model again and compare its checksums; a download that was interrupted looks like this",
        pattern=re.compile(
            r"Error while deserializing header|PytorchStreamReader failed|There is no module or parameter named '|"
            r"Following weights were not initialized"
        ),
        anchors=("deserializing", "PytorchStreamReader", "parameter", "initialized"),
        samples=(
            error(
                "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, "
                "file not fully covered"
            ),
            error("ValueError: There is no module or parameter named 'lm_head' in LlamaForCausalLM"),
            error("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
            error("ValueError: Following weights were not initialized from checkpoint: {'lm_head.weight'}"),
        ),
        near_misses=(warning("Error while deserializing header"), error("ValueError: incomplete request")),
    ),
    Rule(
        id="architecture",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="This vLLM does not know the model's architecture.",
        advice="upgrade vLLM or its transformers to releases that know the model, or pick another model",
        pattern=re.compile(
            r"Model architectures? \S[^\n]{0,300}?(?:are not supported for now|failed to be inspected"
            r"|was supported in vLLM until)"
            r"|The checkpoint you are trying to load has model type `[^`\n]{1,100}` but Transformers does not rec"
        ),
        anchors=("architectures", "architecture", "checkpoint"),
        rank=Rank.CAUSE,
        samples=(
            invalid(
                "ModelConfig",
                "  Value error, Model architectures ['NewForCausalLM'] are not supported for now. "
                "Supported architectures: dict_keys([]) [type=value_error]",
            ),
            error(
                "ValueError: The checkpoint you are trying to load has model type `new` but Transformers does not rec"
            ),
            invalid(
                "ModelConfig",
                "  Value error, Model architectures ['LlamaForCausalLM'] failed to be inspected. Please check the logs "
                "for more details. [type=value_error]",
            ),
            error("ValueError: Model architecture X was supported in vLLM until v0.9.2, and is not supported anymore."),
        ),
        near_misses=(info("Resolved architecture: LlamaForCausalLM"),),
    ),
    Rule(
        id="trust-remote-code",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="The model brings its own code, and the service may not run it.",
        advice="add trust-remote-code under `arguments:` if you trust the repository",
        pattern=re.compile(
            r"The repository \S{1,300} (?:contains|references) custom code |"
            r"[^\n]{0,400}?set(?: the option|ting) `trust_remote_code=True`"
        ),
        anchors=("custom", "trust_remote_code"),
        samples=(
            error(
                "ValueError: The repository x/y contains custom code which must be executed to correctly load the "
                "model. You can inspect the repository content at https://hf.co/x/y .\n"
                " You can inspect the repository content at https://hf.co/x/y.\n"
                "Please pass the argument `trust_remote_code=True` to allow custom code to be run."
            ),
            invalid(
                "ModelConfig",
                "  Value error, The repository x/y contains custom code which must be executed to correctly load the "
                "model. You can inspect the repository content at https://hf.co/x/y .",
            ),
            error(
                "ValueError: The repository x/y references custom code contained in x/z which must be executed to "
                "correctly load the model. You can inspect the repository content at https://hf.co/x/z ."
            ),
            error(
                "RuntimeError: Failed to load the tokenizer. If the tokenizer is a custom tokenizer not yet available "
                "in the HuggingFace transformers library, consider setting `trust_remote_code=True` in LLM or using "
                "the `--trust-remote-code` flag in the CLI."
            ),
            error(
                "ValueError: Loading x/y requires you to execute the configuration file in that repo on your local "
                "machine. Make sure you have read the code there to avoid malicious use, then set the option "
                "`trust_remote_code=True` to remove this error."
            ),
        ),
        near_misses=(warning("set the option `trust_remote_code=True`"),),
    ),
    Rule(
        id="quantization",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="The GPU, or this vLLM, cannot run the model's number format.",
        advice="use a model in another format, a newer GPU[[ (compute capability {capability} or more)]], or set dtype",
        pattern=re.compile(
            r"Unknown quantization method|The quantization method \S{1,80} is not supported for the current GPU\. "
            r"Minimum capability: (?P<capability>\d{1,4})|Quantization scheme is not supported for the current GPU"
            r"|\S{1,60} is not supported for quantization method|Bfloat16 is only supported on GPUs|"
            r"No valid attention backend found for|[^\n]{0,60}no kernel image is available for execution on the device"
        ),
        anchors=("quantization", "Quantization", "Bfloat16", "backend", "kernel"),
        samples=(
            error(
                "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 89. "
                "Current capability: 80."
            ),
            error("RuntimeError: CUDA error: no kernel image is available for execution on the device"),
            error("ValueError: Unknown quantization method: fp3. Must be one of ['awq']."),
            error("RuntimeError: Quantization scheme is not supported for the current GPU. Required capability: 90."),
            error(
                "ValueError: torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [float16]"
            ),
            error(
                "ValueError: No valid attention backend found for Tesla T4 with AttentionSelectorConfig(head_size=256)"
            ),
            error("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0."),
        ),
        near_misses=(info("Detected quantization method fp8"), warning("Unknown quantization method")),
    ),
)
