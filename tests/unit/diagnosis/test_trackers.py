"""Many runs of many units in one stream."""

from __future__ import annotations

from tests.unit.diagnosis.generations import GENERATIONS, healthy, opening, sampler_v1
from vllm_supervisor.diagnosis import Entry, Lifecycle, LifecycleKind, Trackers, read_text

G = GENERATIONS["0.26-0.33"]
SENTENCE = sampler_v1(512)[-1]


def rules(trackers: Trackers) -> dict[tuple[str, str], str | None]:
    return {(unit, run): d.rule if (d := tracker.diagnosis()) else None for unit, run, tracker in trackers}


def test_units_and_runs_are_kept_apart():
    """One unit's error is not another's, nor that of its next run."""
    trackers = Trackers()
    trackers.feed(Entry("vllm-a.service", "1", message=SENTENCE))
    trackers.feed(Entry("vllm-a.service", "2", message="fine"))
    trackers.feed(Entry("vllm-b.service", "1", message="fine"))
    assert rules(trackers) == {
        ("vllm-a.service", "1"): "sampler-oom",
        ("vllm-a.service", "2"): None,
        ("vllm-b.service", "1"): None,
    }


def test_the_stamp_tells_what_was_tried():
    """Whichever entry of the run brings it."""
    trackers = Trackers()
    trackers.feed(Entry("vllm-a.service", "1", lifecycle=Lifecycle(LifecycleKind.STARTING)))
    tracker, _ = trackers.feed(Entry("vllm-a.service", "1", message="x", stamped=96))
    assert tracker.max_num_seqs == 96


def test_a_stamped_unit_is_ready_when_systemd_says_started():
    """Units rendered here have a gate."""
    trackers = Trackers()
    trackers.feed(Entry("vllm-a.service", "1", message="x", service="a"))
    tracker, _ = trackers.feed(Entry("vllm-a.service", "1", lifecycle=Lifecycle(LifecycleKind.STARTED)))
    assert tracker.ready


def test_the_rest_of_a_broken_line_is_no_line():
    """What happens to stand behind the 48th KiB of a prompt is still prompt."""
    trackers = Trackers()
    trackers.feed(Entry("vllm-a.service", "1", "7", "prompt: '" + "x" * 49152, cut=True))
    trackers.feed(Entry("vllm-a.service", "1", "7", SENTENCE, cut=True))
    trackers.feed(Entry("vllm-a.service", "1", "7", SENTENCE))
    assert rules(trackers) == {("vllm-a.service", "1"): None}
    trackers.feed(Entry("vllm-a.service", "1", "7", SENTENCE))
    assert rules(trackers) == {("vllm-a.service", "1"): "sampler-oom"}


def test_dropped_lines_of_an_unknown_run_are_the_latest_ones():
    """Which run they were of may not be known any more."""
    trackers = Trackers()
    trackers.feed(Entry("vllm-a.service", "1", message="x"))
    trackers.feed(Entry("vllm-a.service", "2", message="x"))
    tracker, _ = trackers.feed(Entry("vllm-a.service", "", lifecycle=Lifecycle(LifecycleKind.SUPPRESSED, count=5)))
    assert tracker is trackers.get("vllm-a.service", "2")
    assert not tracker.evidence_complete


def test_a_run_without_an_end_was_cut_off():
    """The host went down: there is a start, then another, and nothing between them says how the first ended."""
    trackers = Trackers()
    first, _ = trackers.feed(Entry("vllm-a.service", "1", lifecycle=Lifecycle(LifecycleKind.STARTING)))
    trackers.feed(Entry("vllm-a.service", "1", message=opening(G)[0]))
    assert first.evidence_complete
    trackers.feed(Entry("vllm-a.service", "2", lifecycle=Lifecycle(LifecycleKind.STARTING)))
    assert not first.evidence_complete


def test_a_run_that_ended_was_not_cut_off():
    """An ordinary restart."""
    trackers = Trackers()
    first, _ = trackers.feed(Entry("vllm-a.service", "1", lifecycle=Lifecycle(LifecycleKind.STARTING)))
    trackers.feed(Entry("vllm-a.service", "1", message=SENTENCE))
    exited = Lifecycle(LifecycleKind.EXITED, command="ExecStart", exit_code="exited", exit_status=1)
    trackers.feed(Entry("vllm-a.service", "1", lifecycle=exited))
    trackers.feed(Entry("vllm-a.service", "2", lifecycle=Lifecycle(LifecycleKind.STARTING)))
    assert first.evidence_complete


def test_the_longest_silent_run_is_forgotten_first():
    """However many runs a crash loop makes."""
    trackers, kept = Trackers(limit=3), []
    for number in range(10):
        trackers.feed(Entry("vllm-a.service", str(number), message="x"))
        kept.append(trackers.feed(Entry("vllm-b.service", "0", message="x"))[0])
    assert len(trackers) == 3
    assert all(tracker is kept[0] for tracker in kept)
    assert trackers.get("vllm-a.service", "9") is not None


def test_a_run_can_be_forgotten():
    """The daemon drops what it has answered."""
    trackers = Trackers()
    trackers.feed(Entry("vllm-a.service", "1", message="x"))
    trackers.forget("vllm-a.service", "1")
    assert len(trackers) == 0


def runs_of(*lines: str) -> list[str]:
    return [entry.invocation for entry in read_text(line.encode() + b"\n" for line in lines)]


def test_a_banner_begins_a_run_of_a_pasted_log():
    """Where systemd's lines are not in it."""
    first, second = opening(G), opening(G)
    assert runs_of(*first, *second) == ["1"] * len(first) + ["2"] * len(second)


def test_systemds_lines_begin_and_end_runs():
    """The lines after an exit belong to the old run until a new one begins."""
    assert runs_of(
        "Starting vllm-a.service - vLLM a...",
        "one",
        "vllm-a.service: Main process exited, code=exited, status=1/FAILURE",
        "last words",
        "vllm-a.service: Scheduled restart job, restart counter is at 1.",
        "Starting vllm-a.service - vLLM a...",
        "two",
    ) == ["1", "1", "1", "1", "1", "2", "2"]


def test_what_systemd_says_of_another_unit_is_not_this_ones():
    """A pasted journal may hold several units; only the lines of one can be told."""
    entries = list(
        read_text([b"vllm-a.service: Failed with result 'exit-code'.\n", b"b.service: Failed with result 'timeout'.\n"])
    )
    assert [(entry.unit, entry.invocation) for entry in entries] == [("", "1"), ("b.service", "")]


def test_a_healthy_log_is_one_run():
    """Several processes, one start."""
    assert set(runs_of(*healthy(G, 8))) == {"1"}
