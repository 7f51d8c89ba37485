"""The host: GPUs and drivers, ports, disks, memory, compilers, and the talk between the ranks.

It is over 300 lines since each row carries its samples.
"""

from __future__ import annotations

import re

from vllm_supervisor.diagnosis.model import Act, Phase, Rank
from vllm_supervisor.diagnosis.rows.samples import READY, error, info, traceback, warning
from vllm_supervisor.diagnosis.rule import Effect, Rule, When

_SYSTEMD = frozenset({"systemd"})

NETWORK = (
    Rule(
        id="port-in-use",
        act=Act.WAIT,
        phase=Phase.STARTING,
        versions="all",
        title="Something listens on the port already: another service, or a process that is still ending.",
        advice="see who it is with `ss -ltnp`; give each service its own port",
        pattern=re.compile(r"\[Errno 98\] (?:Address already in use|error while attempting to bind on address)"),
        anchors=("Address", "bind"),
        when=When.ANY,
        certain=True,
        effect=Effect.NOT_READY,
        samples=(
            "OSError: [Errno 98] Address already in use",
            READY + "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already",
        ),
        near_misses=(info("[Errno 98] Address already in use, trying the next port"), "OSError: [Errno 2] Address"),
    ),
    Rule(
        id="port-refused",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="The service may not listen there: a port below 1024, or an address this host does not have.",
        advice="use a port of 1024 or above and an address of this host",
        pattern=re.compile(
            r"\[Errno 99\] (?:Cannot assign requested address|error while attempting to bind on address)|"
            r"\[Errno 13\] (?:Permission denied$|error while attempting to bind on address)"
        ),
        anchors=("Cannot", "Permission", "bind"),
        when=When.ANY,
        effect=Effect.NOT_READY,
        samples=(
            "PermissionError: [Errno 13] Permission denied",
            "OSError: [Errno 99] Cannot assign requested address",
            "ERROR:    [Errno 99] error while attempting to bind on address ('10.0.0.9', 8000): cannot assign",
            "ERROR:    [Errno 13] error while attempting to bind on address ('0.0.0.0', 80): permission denied",
        ),
        near_misses=("PermissionError: [Errno 13] Permission denied: '/.cache'",),
    ),
    Rule(
        id="nccl",
        act=Act.REPORT,
        phase=None,
        versions="all",
        title="The ranks cannot talk to each other over NCCL or torch.distributed.",
        advice="set NCCL_DEBUG=INFO under `environment:`; check /dev/shm, NVLink and the network between the GPUs",
        pattern=re.compile(
            r"NCCL error|\[[^\]\n]{1,200}\] Watchdog caught collective operation timeout|"
            r"[^\n]{0,300}?NCCL communicator|The client socket has timed out|"
            r"[^\n]{0,200}?Connection (?:reset|closed) by peer|[Ff]ailed to recv, got 0 bytes|"
            r"\[Errno 32\] Broken pipe|RPC call to \S{1,80} timed out"
        ),
        anchors=("NCCL", "Watchdog", "socket", "peer", "recv", "pipe", "RPC"),
        rank=Rank.CONSEQUENCE,
        samples=(
            error("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"),
            error("torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/x.cpp:94"),
            error("TimeoutError: RPC call to execute_model timed out."),
            error("RuntimeError: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"),
            error("RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0]"),
            error("torch.distributed.DistNetworkError: Connection reset by peer"),
            error(
                "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer "
                "[10.0.0.3]:8628"
            ),
            error("torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed."),
            "BrokenPipeError: [Errno 32] Broken pipe",
            "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying",
        ),
        near_misses=(info("NCCL version 2.27.3"), "gpu01:812:812 [0] NCCL WARN Cuda failure 'out of memory'"),
    ),
    Rule(
        id="engine-timeout",
        act=Act.WAIT,
        phase=None,
        versions="0.9 to 0.33",
        title="The engine took longer to start than vLLM waits for it; with warm caches a second start is faster.",
        advice="start again; if it repeats, raise VLLM_ENGINE_READY_TIMEOUT_S in the environment"
        "[[ (it waited {waited_s} s)]]",
        pattern=re.compile(
            r"Timed out waiting for engine core processes to start\.(?:[^\n]{0,300}?Waited (?P<waited_s>\d{1,6}))?"
        ),
        anchors=("Timed",),
        certain=True,
        samples=(
            error(
                "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow "
                "weight loading for large models. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S)."
            ),
        ),
        near_misses=(info("Waiting for engine core processes to start."),),
    ),
)

GPU = (
    Rule(
        id="no-gpu",
        act=Act.WAIT,
        phase=Phase.STARTING,
        versions="all",
        title="vLLM sees no GPU: none is visible to the service, or the driver is not ready yet.",
        advice="check `nvidia-smi`; order the unit after nvidia-persistenced.service; check `gpus:`",
        pattern=re.compile(
            r"Failed to infer device type|No CUDA GPUs are available|No HIP GPUs are available|"
            r"(?:CUDA|HIP) error: no (?:CUDA|ROCm)-capable device is detected|Device string must not be empty|"
            r"Found no NVIDIA driver on your system|NVML Shared Library Not Found|Driver Not Loaded|"
            r"[^\n]{0,100}?Error 802: system not yet initialized"
        ),
        anchors=("infer", "GPUs", "capable", "string", "NVIDIA", "NVML", "Driver", "initialized"),
        samples=(
            "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`",
            error("RuntimeError: No CUDA GPUs are available"),
            error("RuntimeError: No HIP GPUs are available"),
            error("RuntimeError: CUDA error: no CUDA-capable device is detected"),
            error("RuntimeError: HIP error: no ROCm-capable device is detected"),
            error("RuntimeError: Device string must not be empty"),
            "pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded",
            error("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
            "vllm.third_party.pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
            error("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
        ),
        near_misses=(warning("No CUDA GPUs are available"), info("Automatically detected platform cuda.")),
    ),
    Rule(
        id="driver",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="The GPU's driver does not fit: too old, half upgraded, or not fully up.",
        advice="install a driver that fits this vLLM's CUDA, and reboot after an upgrade",
        pattern=re.compile(
            r"[^\n]{0,60}?CUDA driver version is insufficient for CUDA runtime version|"
            r"The NVIDIA driver on your system is too old|Driver/library version mismatch|"
            r"Failed to initialize NVML|CUDA unknown error|[^\n]{0,60}?Error 999: unknown error|"
            r"CUDA error: the provided PTX was compiled with an unsupported toolchain"
        ),
        anchors=("driver", "mismatch", "NVML", "unknown", "PTX"),
        exceptions=frozenset(
            {"RuntimeError", "AcceleratorError", "NVMLError_LibRmVersionMismatch", "NVMLError_Unknown", "NVMLError"}
        ),
        samples=(
            error("RuntimeError: The NVIDIA driver on your system is too old (found version 12020)."),
            error("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 999: unknown error"),
            "pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch",
            error("RuntimeError: CUDA driver version is insufficient for CUDA runtime version"),
            error("RuntimeError: Failed to initialize NVML: Driver/library version mismatch"),
            error("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment"),
            error("torch.AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported toolchain."),
        ),
        near_misses=(warning("The NVIDIA driver on your system is too old"), error("ValueError: unknown error")),
    ),
    Rule(
        id="kernel-fault",
        act=Act.REPORT,
        phase=None,
        versions="all",
        title="A kernel on the GPU went wrong: a bug, or hardware.",
        advice="look for Xid errors in `journalctl -k`; try enforce-eager or another attention backend, and report it",
        pattern=re.compile(
            r"(?:CUDA|HIP) error: (?:an illegal memory access was encountered|device-side assert triggered"
            r"|misaligned address|unspecified launch failure|uncorrectable ECC error)"
            r"|Memory access fault by GPU node-\d{1,4}|out of resource: shared memory"
            r"|Triton Error \[(?:CUDA|HIP)\]: (?!out of memory)"
        ),
        anchors=("illegal", "assert", "misaligned", "launch", "ECC", "fault", "resource", "Triton"),
        bare=True,
        when=When.ANY,
        samples=(
            error("torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
            error("RuntimeError: CUDA error: device-side assert triggered"),
            error("torch.AcceleratorError: CUDA error: misaligned address"),
            error("torch.AcceleratorError: CUDA error: unspecified launch failure"),
            error("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
            "Memory access fault by GPU node-1 (Agent handle: 0x5581) on address 0x7f. Reason: Unknown.",
            error("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"),
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware",
        ),
        near_misses=(
            warning("an illegal memory access was encountered"),
            "Memory access is fast",
            error("RuntimeError: Triton Error [CUDA]: out of memory"),
        ),
    ),
)

SOFTWARE = (
    Rule(
        id="build-tools",
        act=Act.REPORT,
        phase=Phase.WARM_UP,
        versions="0.8 to 0.33",
        title="A kernel had to be compiled, and ninja, nvcc or a compiler is not on the unit's PATH.",
        advice="install ninja and the CUDA toolkit; put the venv's and CUDA's bin on PATH under `environment:`, set "
        "CUDA_HOME",
        pattern=re.compile(
            r"\[Errno 2\] No such file or directory: '(?:\S{0,200}/)?(?:ninja|nvcc|gcc|g\+\+|cc|c\+\+)'"
            r"|Could not find nvcc|nvcc not found at '|Ninja is required to load C\+\+ extensions|Ninja build failed"
            r"|Failed to find C compiler"
            r"|Error building extension '|CUDA_HOME environment variable is not set"
            r"|Command '\[[^\]\n]{0,300}(?:ninja|gcc)[^\n]{0,300}returned non-zero exit status"
        ),
        anchors=("directory", "nvcc", "Ninja", "compiler", "extension", "CUDA_HOME", "Command"),
        samples=(
            traceback(
                "gpu_model_runner.py:_dummy_sampler_run",
                last="FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
            ),
            error("RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"),
            error("FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'"),
            error(
                "FileNotFoundError: nvcc not found at '/usr/local/cuda/bin/nvcc'. Ensure CUDA path '/usr/local/cuda'"
            ),
            error("RuntimeError: Ninja build failed. Ninja output:"),
            error("RuntimeError: Ninja is required to load C++ extensions"),
            error("RuntimeError: Failed to find C compiler. Please specify via CC environment variable"),
            error("RuntimeError: Error building extension 'sampling'"),
            error("OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."),
            error("subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1."),
            error("subprocess.CalledProcessError: Command '['/usr/bin/gcc', 'a.c']' returned non-zero exit status 1."),
        ),
        near_misses=("FileNotFoundError: [Errno 2] No such file or directory: '/opt/models/ninja.txt'",),
    ),
    Rule(
        id="install",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="The installation is not of one piece: a package is missing, or compiled for another one.",
        advice="install vLLM afresh in a venv of its own, with the versions it asks for",
        pattern=re.compile(r"[^\n]{0,2000}"),
        exceptions=frozenset({"ImportError", "ModuleNotFoundError", "PackageNotFoundError"}),
        rank=Rank.GENERAL,
        samples=(
            "ImportError: /opt/vllm/lib/python3.11/site-packages/vllm/_C.abi3.so: undefined symbol: _ZN3c10",
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
            error("ModuleNotFoundError: No module named 'flash_attn'"),
        ),
        near_misses=(warning("ImportError: cannot import name 'x'"), "RuntimeError: undefined symbol"),
    ),
    Rule(
        id="disk-full",
        act=Act.REPORT,
        phase=None,
        versions="all",
        title="A disk is full: the cache of models or of compiled kernels, or /dev/shm.",
        advice="free space where HF_HOME and VLLM_CACHE_ROOT point, or enlarge /dev/shm",
        pattern=re.compile(
            r"[^\n]{0,100}?No space left on device|Insufficient space in \S{1,200} for |"
            r"Error while creating shared memory segment"
        ),
        anchors=("space", "segment"),
        samples=(
            "OSError: [Errno 28] No space left on device",
            error("RuntimeError: Insufficient space in /dev/shm for message queue: 64 MiB required, 8 MiB free."),
            error("safetensors_rust.SafetensorError: Error while serializing: IO Error: No space left on device"),
            error("RuntimeError: Error while creating shared memory segment /dev/shm/nccl-Y3 (size 9637888)"),
        ),
        near_misses=(warning("No space left on device for the log"), error("OSError: [Errno 5] no device")),
    ),
    Rule(
        id="host-memory",
        act=Act.REPORT,
        phase=None,
        versions="all",
        title="The host's own memory ran out, not the GPU's.",
        advice="give the host more memory or swap, or load fewer models[[; {asked_bytes} bytes were asked for]]",
        pattern=re.compile(
            r"[^\n]{0,200}?DefaultCPUAllocator: can't allocate memory"
            r"(?:: you tried to allocate (?P<asked_bytes>\d{1,20}) bytes)?"
            r"|\[Errno 12\] Cannot allocate memory|Too large swap space\.|Unable to allocate [\d.]{1,12} [KMGT]iB for"
            r"|\s*$"
        ),
        anchors=("DefaultCPUAllocator", "Cannot", "swap", "Unable", "MemoryError"),
        exceptions=frozenset({"RuntimeError", "OSError", "MemoryError", "_ArrayMemoryError", "ValueError"}),
        samples=(
            error(
                "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you "
                "tried to allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)"
            ),
            "OSError: [Errno 12] Cannot allocate memory",
            "MemoryError",
            error("ValueError: Too large swap space. 64.00 GiB out of the 62.00 GiB total CPU memory is allocated"),
            error("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 2.00 GiB for an array with shape (9,)"),
        ),
        near_misses=(info("MemoryError"), error("RuntimeError: Cannot allocate a slot")),
    ),
    Rule(
        id="no-permission",
        act=Act.REPORT,
        phase=None,
        versions="all",
        title="The service's user may not read or write a file.",
        advice="give the service's user access; point HF_HOME, XDG_CACHE_HOME and VLLM_CACHE_ROOT to places of its own",
        pattern=re.compile(r"\[Errno (?:13|30)\] (?:Permission denied|Read-only file system): '"),
        anchors=("Permission", "Read"),
        exceptions=frozenset({"PermissionError", "OSError"}),
        samples=(
            error("PermissionError: [Errno 13] Permission denied: '/.cache'"),
            error("OSError: [Errno 30] Read-only file system: '/opt/models/models--org--small'"),
        ),
        near_misses=("PermissionError: [Errno 13] Permission denied", warning("[Errno 13] Permission denied: '/x'")),
    ),
)

EXITS = (
    Rule(
        id="cannot-execute",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="systemd could not start the command at all; the status names the step.",
        advice="check `executable:`, `user:` and the paths in the unit: `systemd-analyze exit-status {exit_status}`",
        pattern=re.compile(r"exited \w{1,40} code=exited status=(?P<exit_status>2[0-4]\d)$"),
        anchors=("exited",),
        exceptions=_SYSTEMD,
        samples=("vllm-a.service: Main process exited, code=exited, status=203/EXEC",),
        near_misses=("vllm-a.service: Main process exited, code=exited, status=1/FAILURE",),
    ),
    Rule(
        id="before-start",
        act=Act.REPORT,
        phase=Phase.STARTING,
        versions="all",
        title="A command that runs before vLLM (ExecStartPre=) failed.",
        advice="run the unit's ExecStartPre= by hand as the service's user",
        pattern=re.compile(r"exited ExecStartPre code=\w{1,20} status=(?P<exit_status>\d{1,3})$"),
        anchors=("exited",),
        exceptions=_SYSTEMD,
        samples=("vllm-a.service: Control process exited, code=exited, status=1/FAILURE",),
        near_misses=("vllm-a.service: Main process exited, code=exited, status=1/FAILURE",),
    ),
    Rule(
        id="start-timeout",
        act=Act.REPORT,
        phase=None,
        versions="all",
        title="systemd gave the start up after TimeoutStartSec=.",
        advice="raise the service's start timeout; a first start fetches and compiles more than later ones",
        pattern=re.compile(r"failed result=timeout$"),
        anchors=("failed",),
        exceptions=_SYSTEMD,
        rank=Rank.GENERAL,
        samples=("vllm-a.service: Failed with result 'timeout'.",),
        near_misses=("vllm-a.service: Failed with result 'exit-code'.",),
    ),
    Rule(
        id="crashed",
        act=Act.REPORT,
        phase=None,
        versions="all",
        title="The main process crashed in native code.",
        advice="look at `coredumpctl` and `journalctl -k`; report it with the vLLM, torch and driver versions",
        pattern=re.compile(
            r"exited ExecStart code=(?:dumped|killed) status=(?:4|5|6|7|8|11|31)$|Fatal Python error: |"
            r"(?:Segmentation fault|Bus error|Aborted)(?: \(core dumped\))?$"
        ),
        anchors=("exited", "Fatal", "Segmentation", "Bus", "Aborted"),
        bare=True,
        rank=Rank.GENERAL,
        when=When.ANY,
        samples=(
            "vllm-a.service: Main process exited, code=dumped, status=11/SEGV",
            "vllm-a.service: Main process exited, code=killed, status=6/ABRT",
            "Fatal Python error: Segmentation fault",
            "(Worker_TP1 pid=5) Bus error (core dumped)",
            "Segmentation fault",
            "Aborted (core dumped)",
        ),
        near_misses=("vllm-a.service: Main process exited, code=exited, status=1/FAILURE", info("Aborted")),
    ),
    Rule(
        id="killed",
        act=Act.REPORT,
        phase=None,
        versions="all",
        title="Somebody killed the main process.",
        advice="look for who did: an operator, another supervisor, or an out-of-memory daemon",
        pattern=re.compile(r"exited ExecStart code=killed status=(?P<signal>1|2|3|9|15)$"),
        anchors=("exited",),
        exceptions=_SYSTEMD,
        rank=Rank.CONSEQUENCE,
        samples=("vllm-a.service: Main process exited, code=killed, status=9/KILL",),
        near_misses=("vllm-a.service: Main process exited, code=exited, status=9/n/a",),
    ),
)

RULES = (*NETWORK, *GPU, *SOFTWARE, *EXITS)
