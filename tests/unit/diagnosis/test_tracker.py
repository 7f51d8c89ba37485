"""One run: when evidence counts, which of it wins, and what is known of the run besides."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.generations import (
    CORE,
    GENERATIONS,
    captured,
    failed_alone,
    healthy,
    key_values,
    loading,
    oom,
    opening,
    sampler_v1,
    sampler_v2,
    served,
    trace,
)
from vllm_supervisor.diagnosis import CATALOGUE, Act, Lifecycle, LifecycleKind, Phase, Tracker
from vllm_supervisor.diagnosis.traces import PROCESSES_LIMIT

G = GENERATIONS["0.26-0.33"]
SENTENCE = sampler_v1(512)[-1]
STARTED, STOPPING = Lifecycle(LifecycleKind.STARTED), Lifecycle(LifecycleKind.STOPPING)
EXITED = Lifecycle(LifecycleKind.EXITED, command="ExecStart", exit_code="exited", exit_status=1)


def tracked(*log: str, tracker: Tracker | None = None) -> Tracker:
    tracker = tracker or Tracker()
    for line in log:
        tracker.line(line)
    return tracker


def rule(tracker: Tracker) -> str | None:
    found = tracker.diagnosis()
    return found.rule if found else None


# -- when evidence counts ----------------------------------------------------------------------------------------------


def test_the_sentence_is_certain_at_once():
    """Nothing survives it, so there is no need to wait for the exit."""
    found = tracked(SENTENCE).diagnosis()
    assert found is not None
    assert (found.rule, found.act, found.tried, found.certain) == ("sampler-oom", Act.LOWER, 512, True)


def test_frames_are_certain_only_when_the_start_is_over():
    """A traceback alone might be survived; the exit, or vLLM's last word, says that it was not."""
    tracker = tracked(*opening(G), *sampler_v2(oom()))
    assert tracker.diagnosis().certain is False
    tracker.lifecycle(EXITED)
    assert tracker.diagnosis().certain is True


def test_vllms_last_word_makes_frames_certain():
    """The generic line comes before the exit."""
    assert tracked(*opening(G), *failed_alone(G, sampler_v2(oom()))).diagnosis().certain is True


def test_nothing_counts_after_a_stop_was_asked_for():
    """A stop while starting prints errors that are none of the service's."""
    tracker = tracked(*opening(G))
    tracker.lifecycle(STOPPING)
    tracked(SENTENCE, tracker=tracker)
    tracker.lifecycle(EXITED)
    found = tracker.diagnosis()
    assert (found.rule, found.act, tracker.findings) == ("stopped", Act.NONE, ())


def test_what_failed_before_the_stop_still_counts():
    """An operator who stops a failed start does not hide why it failed."""
    tracker = tracked(SENTENCE)
    tracker.lifecycle(STOPPING)
    assert rule(tracker) == "sampler-oom"


def test_nothing_counts_after_ready():
    """A served prompt, or a model, may print anything."""
    assert rule(tracked(*healthy(G), *sampler_v1(512), *sampler_v2(oom()))) is None


def test_started_means_ready_where_systemd_waits_for_the_service():
    """Units rendered here are started once they answer; their lines are stamped, which is how that is known."""
    tracker = Tracker()
    tracker.gated = True
    tracker.lifecycle(STARTED)
    assert tracker.ready


def test_started_means_nothing_for_a_plain_unit():
    """Type=simple says "started" before vLLM has printed its first line."""
    tracker = Tracker()
    tracker.lifecycle(STARTED)
    assert not tracker.ready
    assert rule(tracked(SENTENCE, tracker=tracker)) == "sampler-oom"


def test_started_means_ready_once_vllm_has_loaded():
    """Such a unit has a gate of its own."""
    tracker = tracked(*opening(G), *loading(G))
    tracker.lifecycle(STARTED)
    assert tracker.ready


def test_a_server_that_cannot_bind_was_not_ready():
    """The line that says "complete" comes before the bind."""
    tracker = tracked(*healthy(G), "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000)")
    found = tracker.diagnosis()
    assert (found.rule, found.ready_before, tracker.ready) == ("port-in-use", False, False)


# -- which evidence wins -----------------------------------------------------------------------------------------------


def test_the_first_cause_wins_over_its_echoes():
    """The ranks that did not run out complain about the one that did."""
    nccl = "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"
    workers = [("Worker_TP0", 300, nccl), ("Worker_TP1", 301, SENTENCE), ("Worker_TP2", 302, "RuntimeError: cancelled")]
    log = [line for name, pid, text in workers for line in G.log(name, pid, "ERROR", "multiproc_executor.py", text)]
    found = tracked(*log).diagnosis()
    assert (found.rule, found.finding.source, found.finding.line) == ("sampler-oom", "Worker_TP1", 2)


def test_of_two_causes_the_first_wins():
    """Order decides among equals."""
    used = "is less than desired GPU memory utilization (0.9, 1.8 GiB)"
    busy = f"ValueError: Free memory on device cuda:0 (1.0/2.0 GiB) on startup {used}."
    assert rule(tracked(busy, "OSError: [Errno 28] No space left on device")) == "gpu-busy"
    assert rule(tracked("OSError: [Errno 28] No space left on device", busy)) == "disk-full"


def test_interleaved_ranks_do_not_lend_each_other_frames():
    """Two tracebacks, line by line in turn: each is judged by its own functions."""
    tracker = Tracker()
    pair = zip(trace(["r.py:load_model"], oom()), trace(["r.py:_dummy_sampler_run"], "ImportError: x"), strict=True)
    for loads, warms in pair:
        tracker.line(loads, process="1")
        tracker.line(warms, process="2")
    assert rule(tracker) == "oom-weights-frames"


def test_frames_end_with_their_traceback():
    """The functions of an earlier, survived exception do not place a later one."""
    survived = trace(["r.py:_dummy_sampler_run"], "AttributeError: no flashinfer")
    assert rule(tracked(*survived, oom())) == "oom-unplaced"


def test_a_relayed_error_is_not_placed_by_the_engines_frames():
    """How the engine heard of it says nothing about where it happened."""
    said = oom().partition(": ")[2]
    relayed = f"RuntimeError: Worker failed with error '{said}', please check the stack trace above for the root cause"
    assert rule(tracked(*trace(["abstract.py:determine_available_memory"], relayed))) == "oom-unplaced"


def test_a_repeat_says_nothing_new():
    """Eight ranks, three printings: one finding."""
    tracker = Tracker()
    assert [tracker.line(SENTENCE) is not None for _ in range(24)] == [True] + [False] * 23
    assert len(tracker.findings) == 1


def test_an_unknown_failure_quotes_its_last_error():
    """Not the generic line, and not Python's noise on its way out."""
    tracker = tracked(*opening(G), *loading(G), *failed_alone(G, trace(["a.py:b"], "ValueError: new words")))
    found = tracker.diagnosis()
    assert (found.rule, found.act, found.phase) == ("unknown", Act.REPORT, Phase.PROFILING)
    assert found.finding.quote == "ValueError: new words"
    assert found.advice.startswith("died while profiling memory, and no rule matched")


def test_the_joint_of_two_exceptions_tells_nothing():
    """A log that was cut behind it still quotes the exception."""
    log = G.log(G.core, CORE, "ERROR", "core.py", "\n".join(sampler_v1(512, raw="ValueError: new words")[:9]))
    tracker = tracked(*opening(G), *log)
    tracker.end()
    assert tracker.diagnosis().finding.quote == "ValueError: new words"


def test_a_refused_value_is_quoted_with_its_name():
    """Pydantic spreads it over three lines; the first alone would not tell which value."""
    header = "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig"
    tracker = tracked(header, "max_num_seqs", "  Input should be greater than or equal to 1 [type=greater_than_equal]")
    (finding,) = tracker.findings
    assert finding.quote.startswith("1 validation error for SchedulerConfig max_num_seqs: Input should be greater")


def test_a_healthy_start_has_no_diagnosis():
    """From the first line to a served request."""
    tracker = Tracker()
    for line in healthy(G):
        assert tracker.line(line) is None
        assert tracker.diagnosis() is None


def test_a_start_that_goes_on_has_no_diagnosis():
    """An error that vLLM survives is not a failure yet."""
    tracker = tracked(*opening(G), *G.log(G.core, CORE, "ERROR", "x.py", "ValueError: retried"))
    assert tracker.diagnosis() is None
    assert rule(tracked(*loading(G), *key_values(G), *captured(G), *served(G), tracker=tracker)) is None


# -- systemd -----------------------------------------------------------------------------------------------------------


def test_an_engine_that_dies_while_serving_is_reported():
    """Whatever it ran out of, the start had fitted: no flag changes."""
    tracker = tracked(*healthy(G), *trace(["gpu_worker.py:execute_model"], oom()))
    assert rule(tracker) is None
    tracked(*G.log(G.core, CORE, "ERROR", "core.py", "EngineCore encountered a fatal error."), tracker=tracker)
    found = tracker.diagnosis()
    assert (found.rule, found.act, found.ready_before, found.tried) == ("oom-serving", Act.REPORT, True, None)


def test_what_a_start_survived_is_not_why_it_died_later():
    """An error before ready was no failure, whatever its rank."""
    start = [*opening(G), *trace(["runner.py:flashinfer_autotune"], oom()), *healthy(G)[len(opening(G)) :]]
    tracker = tracked(*start, *G.log(G.core, CORE, "ERROR", "core.py", "EngineCore encountered a fatal error."))
    assert rule(tracker) == "engine-died"


def test_exit_status_0_without_a_request_is_a_failure():
    """So it ends when its engine dies."""
    tracker = tracked(*healthy(G))
    tracker.lifecycle(Lifecycle(LifecycleKind.EXITED, command="ExecStart", exit_code="exited", exit_status=0))
    assert rule(tracker) == "unknown"


def test_a_requested_stop_of_a_served_model_is_no_failure():
    """The operator's hand."""
    tracker = tracked(*healthy(G))
    tracker.lifecycle(STOPPING)
    tracker.lifecycle(EXITED)
    assert tracker.diagnosis() is None


def test_the_gate_may_fail_without_ending_the_run():
    """Only the main process's exit ends a run."""
    tracker = tracked(*opening(G))
    tracker.lifecycle(Lifecycle(LifecycleKind.EXITED, command="ExecStartPost", exit_code="exited", exit_status=1))
    assert not tracker.ended


def test_the_kernel_is_believed_over_the_worker():
    """A worker that vanished was killed, and systemd says by whom."""
    tracker = tracked(
        *G.log(G.core, CORE, "ERROR", "x.py", "Worker proc VllmWorker-0 died unexpectedly, shutting down")
    )
    assert tracker.diagnosis() is None
    tracker.lifecycle(Lifecycle(LifecycleKind.OOM_KILL))
    assert rule(tracker) == "host-oom"


# -- completeness ------------------------------------------------------------------------------------------------------


def test_evidence_is_complete_when_the_run_is_there_from_start_to_end():
    """Started, failed, said why."""
    tracker = Tracker()
    tracker.lifecycle(Lifecycle(LifecycleKind.STARTING))
    tracked(*opening(G), *failed_alone(G, sampler_v1(512)), tracker=tracker)
    tracker.lifecycle(EXITED)
    assert tracker.evidence_complete


@pytest.mark.parametrize(
    ("log", "events"),
    [
        pytest.param(opening(G), [Lifecycle(LifecycleKind.SUPPRESSED, count=9)], id="journald-dropped-lines"),
        pytest.param(trace(["a.py:b"], "ValueError: x")[1:], [], id="begins-inside-a-traceback"),
        pytest.param([*opening(G), *trace(["a.py:b"], "x")[:-1]], [EXITED], id="ends-inside-a-traceback"),
        pytest.param(["ValueError: x"], [EXITED], id="its-beginning-was-rotated-away"),
        pytest.param(opening(G), [EXITED], id="failed-without-a-word"),
    ],
)
def test_evidence_is_incomplete(log: list[str], events: list[Lifecycle]):
    """What is missing is said, not guessed."""
    tracker = tracked(*log)
    for event in events:
        tracker.lifecycle(event)
    assert not tracker.evidence_complete


# -- what is known besides ---------------------------------------------------------------------------------------------


def test_the_phases_of_a_start_come_in_order():
    """As its markers pass by."""
    tracker, phases = Tracker(), []
    for line in healthy(G, 2):
        tracker.line(line)
        if not phases or phases[-1] is not tracker.phase:
            phases.append(tracker.phase)
    assert phases == [
        Phase.STARTING, Phase.LOADING, Phase.PROFILING, Phase.KV_CACHE, Phase.GRAPH_CAPTURE, Phase.WARM_UP, Phase.READY,
    ]  # fmt: skip


def test_progress_counts_the_shards():
    """For the line that `systemctl status` shows."""
    assert tracked(*loading(G)[:3]).progress == "loading weights 50 % (50/100 shards)"
    assert tracked(*healthy(G)).progress == "ready"


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS.keys())
def test_the_version_is_read(generation):
    """From the banner of each generation."""
    assert tracked(*opening(generation)).vllm_version == generation.version


def test_memory_is_bounded():
    """Whatever number of processes, rules and frames."""
    tracker = Tracker()
    for number in range(2 * PROCESSES_LIMIT):
        for line in trace([f"f{n}.py:g{n}" for n in range(5)], f"Error{number}"):
            tracker.line(line, process=str(number))
    assert len(tracker._traces) == PROCESSES_LIMIT
    assert len(tracker.findings) <= len(CATALOGUE.rules)
