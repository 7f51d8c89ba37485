"""When a run can be judged: at once where a line is certain, else once it was silent; and only the latest run."""

from __future__ import annotations

import pytest

from vllm_supervisor.diagnosis import Entry, Lifecycle, LifecycleKind
from vllm_supervisor.follow import DRAIN_LIMIT_S, DRAIN_S, Follower

UNIT = "vllm-a.service"
SENTENCE = (
    "(EngineCore pid=9) ERROR 11-29 15:09:08 [core.py:1510] RuntimeError: CUDA out of memory occurred when warming up "
    "sampler with 512 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing "
    "the engine."
)
EXITED = Lifecycle(LifecycleKind.EXITED, command="ExecStart", exit_code="exited", exit_status=1)


def line(text, invocation="run1"):
    return Entry(UNIT, invocation, process="9", message=text, service="a")


def exited(invocation="run1"):
    return Entry(UNIT, invocation, lifecycle=EXITED)


def fed(*entries, at_s=0.0):
    follower = Follower({UNIT: "a"})
    for entry in entries:
        follower.take(entry, at_s)
    return follower


def rules(follower, now_s):
    return [(case.invocation, diagnosis.rule) for case, diagnosis in follower.due(now_s)]


@pytest.mark.parametrize("entries", [[line(SENTENCE)], [line(SENTENCE), exited()]], ids=["running", "ended-since"])
def test_a_certain_line_is_answered_at_once(entries):
    """That the process has ended meanwhile takes nothing from the certainty, and need not be waited for."""
    assert rules(fed(*entries), 0.0) == [("run1", "sampler-oom")]


def test_a_run_that_ended_is_judged_once_it_was_silent():
    """Its last lines may follow the word that it ended: each puts the judgement off."""
    follower = fed(exited())

    assert rules(follower, DRAIN_S - 0.01) == []
    follower.take(line("one more line"), DRAIN_S - 0.01)
    assert rules(follower, DRAIN_S) == []
    follower.take(line(SENTENCE), DRAIN_S)
    assert rules(follower, 2 * DRAIN_S) == [("run1", "sampler-oom")]


def test_a_run_that_is_never_silent_is_judged_in_the_end():
    """However much it has to say."""
    follower = fed(exited())
    for tenth in range(int(DRAIN_LIMIT_S * 10) + 1):
        follower.take(line("noise"), tenth / 10)

    assert rules(follower, DRAIN_LIMIT_S) == [("run1", "unknown")]


def test_a_better_reason_that_turns_up_late_is_judged_again():
    """And the same reason is not."""
    follower = fed(exited())
    assert rules(follower, 1.0) == [("run1", "unknown")]

    follower.take(line(SENTENCE), 2.0)
    assert rules(follower, 3.0) == [("run1", "sampler-oom")]
    follower.take(line(SENTENCE), 4.0)
    assert rules(follower, 5.0) == []


def test_only_the_latest_run_counts():
    """A later run has begun: its own evidence decides."""
    assert rules(fed(line(SENTENCE), line("INFO: starting", "run2")), 1.0) == []


@pytest.mark.parametrize("late", [line("INFO: the last words", "run1"), line(SENTENCE, "run1"), exited("run1")])
def test_last_words_of_an_earlier_run_hide_no_later_one(late):
    """They may come when the later one has begun, even when it has failed already."""
    begun = [Entry(UNIT, run, lifecycle=Lifecycle(LifecycleKind.STARTING)) for run in ("run1", "run2")]

    assert rules(fed(begun[0], begun[1], line(SENTENCE, "run2"), late), 0.0) == [("run2", "sampler-oom")]
    assert rules(fed(begun[0], begun[1], late), 1.0) == []


def test_other_units_are_nothing_to_us():
    """Whatever they print."""
    assert rules(fed(Entry("other.service", "run1", process="9", message=SENTENCE)), 1.0) == []
