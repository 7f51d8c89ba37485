"""How a run ends: what every process prints when one fails, engines that die while serving, and what systemd saw."""

from __future__ import annotations

import re

from vllm_supervisor.diagnosis.model import Act, Phase, Rank
from vllm_supervisor.diagnosis.rows.samples import READY, error, info
from vllm_supervisor.diagnosis.rule import Effect, Rule, When

_SYSTEMD = frozenset({"systemd"})

ECHOES = (
    Rule(
        id="start-failed",
        act=Act.REPORT,
        phase=None,
        versions="0.8 to 0.33",
        title="vLLM's last word on any start that failed; the cause stands above it.",
        advice="read the lines before it",
        pattern=re.compile(r"Engine core initialization failed\. See root cause above\."),
        anchors=("initialization",),
        exceptions=frozenset({"RuntimeError"}),
        rank=Rank.ECHO,
        effect=Effect.START_FAILED,
        samples=(
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.",
        ),
        near_misses=(info("Engine core initialization took 3 s"),),
    ),
    Rule(
        id="start-echo",
        act=Act.REPORT,
        phase=None,
        versions="0.8 to 0.33",
        title="A process says that its start failed, the same for every cause.",
        advice="read the traceback below it",
        pattern=re.compile(
            r"EngineCore failed to start\.|WorkerProc failed to start\.|WorkerProc hit an exception|"
            r"WorkerProc initialization failed due to an exception|Got fatal signal from worker processes|"
            r"EngineCore encountered an issue\.|AsyncLLM output_handler failed|cancelled$"
        ),
        anchors=("failed", "WorkerProc", "signal", "encountered", "cancelled"),
        rank=Rank.ECHO,
        samples=(
            error("EngineCore failed to start."),
            "(Worker_TP1 pid=5) ERROR 11-29 15:26:59 [multiproc_executor.py:1063] WorkerProc hit an exception.",
            "RuntimeError: cancelled",
            error("AsyncLLM output_handler failed."),
            error("WorkerProc failed to start."),
            error("Exception: WorkerProc initialization failed due to an exception in a background process."),
            "(APIServer pid=7) CRITICAL 03-01 10:00:00 [x.py:1] Got fatal signal from worker processes, shutting down.",
            error("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace"),
        ),
        near_misses=(info("EngineCore failed to start."), READY + error("EngineCore failed to start.")),
    ),
    Rule(
        id="interrupted",
        act=Act.NONE,
        phase=None,
        versions="0.8 to 0.33",
        title="vLLM got a signal to end while it was starting.",
        advice="nothing to do if somebody stopped it",
        pattern=re.compile(r"(?:terminated)?\s*$"),
        exceptions=frozenset({"KeyboardInterrupt"}),
        rank=Rank.ECHO,
        effect=Effect.SIGNALLED,
        samples=("KeyboardInterrupt: terminated", "KeyboardInterrupt"),
        near_misses=("RuntimeError: terminated",),
    ),
    Rule(
        id="worker-died",
        act=Act.REPORT,
        phase=None,
        versions="0.8 to 0.33",
        title="A worker process ended without saying why.",
        advice="look for the kernel's OOM killer or a crash around that time: `journalctl -k`",
        pattern=re.compile(
            r"(?:Worker proc \S{1,80}|RayWorkerProc rank=\[[\d, ]{1,200}\]|Engine core proc \S{1,80}) died unexpectedly"
            r"(?: \(exit code: (?P<exit_code>-?\d{1,4})\))?"
        ),
        anchors=("died",),
        rank=Rank.CONSEQUENCE,
        samples=(
            error("Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."),
            error("Worker proc VllmWorker-0 died unexpectedly, shutting down executor."),
            error("RayWorkerProc rank=[0, 3] died unexpectedly, shutting down executor."),
            error("Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."),
        ),
        near_misses=(info("[shutdown] Executor: all workers exited gracefully"),),
    ),
)

SERVING = (
    Rule(
        id="engine-died",
        act=Act.REPORT,
        phase=Phase.READY,
        versions="0.8 to 0.33",
        title="The engine died while serving; `vllm serve` may then end with exit status 0, or not end at all.",
        advice="read the traceback before it; with Restart=always systemd brings the service up again",
        pattern=re.compile(
            r"EngineCore encountered (?:a fatal error|an issue)\.|AsyncLLM output_handler failed|"
            r"Engine core proc(?:ess)? [^\n]{1,120}died unexpectedly|Worker proc \S{1,80} died unexpectedly|"
            r"Process ApiServer_\d{1,6} \(PID: \d{1,10}\) died with exit code"
        ),
        anchors=("encountered", "AsyncLLM", "died"),
        rank=Rank.GENERAL,
        when=When.SERVING,
        effect=Effect.ENGINE_DEAD,
        samples=(
            READY + error("EngineCore encountered a fatal error."),
            READY
            + error("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace"),
            READY + error("Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."),
            READY + error("AsyncLLM output_handler failed."),
            READY + error("Worker proc VllmWorker-0 died unexpectedly, shutting down executor."),
            READY + error("RuntimeError: Process ApiServer_0 (PID: 812) died with exit code -9"),
        ),
        near_misses=(
            READY + error("Error in preprocessing prompt inputs"),
            READY + info("[shutdown] API server: shutdown triggered") + "\n" + error("AsyncLLM output_handler failed."),
        ),
    ),
)

SYSTEMD = (
    Rule(
        id="host-oom",
        act=Act.REPORT,
        phase=None,
        versions="all",
        title="The kernel's OOM killer ended a process of the unit: the host's memory ran out, not the GPU's.",
        advice="give the host more memory or swap, raise the unit's MemoryMax= if it has one, or load fewer models",
        pattern=re.compile(r"oom_kill |failed result=oom-kill"),
        anchors=("oom_kill", "failed"),
        exceptions=_SYSTEMD,
        when=When.ANY,
        samples=(
            "vllm-a.service: A process of this unit has been killed by the OOM killer.",
            "vllm-a.service: Failed with result 'oom-kill'.",
            "Feb 22 06:55:47 gpu01 kernel: Out of memory: Killed process 812 (VLLM::Worker_TP) total-vm:1kB",
        ),
        near_misses=(
            "vllm-a.service: Failed with result 'exit-code'.",
            error("Out of memory: Killed process 1 (a)"),
        ),
    ),
)

RULES = (*ECHOES, *SERVING, *SYSTEMD)
