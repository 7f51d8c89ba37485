"""Who wrote an entry, and whether that can be believed."""

from __future__ import annotations

import pytest

from vllm_supervisor.diagnosis import Entry, Lifecycle, LifecycleKind, entry_from_journal, read, read_export

OWN = {
    "_TRANSPORT": "stdout",
    "_SYSTEMD_UNIT": "vllm-a.service",
    "_SYSTEMD_INVOCATION_ID": "1" * 32,
    "_PID": "812",
    "MESSAGE": "said",
    "__CURSOR": "s=1",
    "__REALTIME_TIMESTAMP": "1795969303414380",
}
SYSTEMD = {
    "_TRANSPORT": "journal",
    "_PID": "1",
    "_UID": "0",
    "UNIT": "vllm-a.service",
    "INVOCATION_ID": "1" * 32,
    "MESSAGE_ID": "98e322203f7a4ed290d09fe03c09fe15",
    "COMMAND": "ExecStart",
    "EXIT_CODE": "exited",
    "EXIT_STATUS": "1",
    "MESSAGE": "vllm-a.service: Main process exited, code=exited, status=1/FAILURE",
}


def test_a_units_own_line():
    """Unit, run, process, text, place and time."""
    assert entry_from_journal(OWN) == Entry(
        "vllm-a.service", "1" * 32, "812", "said", cursor="s=1", realtime_us=1795969303414380
    )


def test_the_stamps_tell_what_it_ran_with():
    """They are added by systemd, so they are as good as the unit."""
    stamps = {
        "VLLM_SUPERVISOR_SERVICE": "a",
        "VLLM_SUPERVISOR_MAX_NUM_SEQS": "512",
        "VLLM_SUPERVISOR_FINGERPRINT": "f00",
    }
    entry = entry_from_journal(OWN | stamps)
    assert (entry.service, entry.stamped, entry.fingerprint) == ("a", 512, "f00")
    assert entry_from_journal(OWN | {"VLLM_SUPERVISOR_MAX_NUM_SEQS": "default"}).stamped is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"_TRANSPORT": "syslog"}, id="through-syslog"),
        pytest.param({"_TRANSPORT": "journal"}, id="through-the-native-protocol"),
        pytest.param({"_SYSTEMD_UNIT": "session-3.scope", "UNIT": "vllm-a.service"}, id="a-users-session"),
        pytest.param({"_SYSTEMD_UNIT": ["vllm-a.service", "vllm-b.service"]}, id="a-unit-given-twice"),
    ],
)
def test_a_line_that_is_not_the_units_own_is_refused(change: dict[str, object]):
    """Only what came through the unit's standard output, as journald itself says."""
    assert entry_from_journal(OWN | change) is None


def test_a_line_whose_run_journald_does_not_know_is_kept():
    """Its writer was gone when journald looked, and systemd had opened the stream for the unit."""
    entry = entry_from_journal({name: value for name, value in OWN.items() if name != "_SYSTEMD_INVOCATION_ID"})

    assert entry is not None
    assert (entry.unit, entry.invocation, entry.message) == ("vllm-a.service", "", "said")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"_PID": "812"}, id="not-pid-1"),
        pytest.param({"_UID": "1000"}, id="not-root"),
        pytest.param({"MESSAGE_ID": "0" * 32}, id="no-message-we-know"),
        pytest.param({"UNIT": "a.mount"}, id="no-service"),
    ],
)
def test_a_forged_lifecycle_event_is_refused(change: dict[str, object]):
    """Anybody may write UNIT= and MESSAGE_ID= into the journal."""
    assert entry_from_journal(SYSTEMD | change) is None


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        pytest.param({}, (LifecycleKind.EXITED, "exited", 1, ""), id="exited"),
        pytest.param({"EXIT_CODE": "killed", "EXIT_STATUS": "9"}, (LifecycleKind.EXITED, "killed", 9, ""), id="killed"),
        pytest.param(
            {"MESSAGE_ID": "7d4958e842da4a758f6c1cdc7b36dcc5"}, (LifecycleKind.STARTING, "", None, ""), id="starting"
        ),
        pytest.param(
            {"MESSAGE_ID": "39f53479d3a045ac8e11786248231fbf"}, (LifecycleKind.STARTED, "", None, ""), id="started"
        ),
        pytest.param(
            {"MESSAGE_ID": "de5b426a63be47a7b6ac3eaac82e2f6f"}, (LifecycleKind.STOPPING, "", None, ""), id="stopping"
        ),
        pytest.param(
            {"MESSAGE_ID": "7ad2d189f7e94e70a38c781354912448"},
            (LifecycleKind.EXITED, "exited", 0, "success"),
            id="exit-status-0",
        ),
        pytest.param(
            {"MESSAGE_ID": "d9b373ed55a64feb8242e02dbe79a49c", "UNIT_RESULT": "oom-kill"},
            (LifecycleKind.FAILED, "", None, "oom-kill"),
            id="failed",
        ),
        pytest.param(
            {"MESSAGE_ID": "d9b373ed55a64feb8242e02dbe79a49c", "UNIT_RESULT": "start-limit-hit"},
            (LifecycleKind.START_LIMIT, "", None, "start-limit-hit"),
            id="start-limit",
        ),
        pytest.param(
            {"MESSAGE_ID": "be02cf6855d2428ba40df7e9d022f03d", "JOB_RESULT": "timeout"},
            (LifecycleKind.FAILED, "", None, "timeout"),
            id="start-job-failed",
        ),
        pytest.param(
            {"MESSAGE_ID": "fe6faa94e7774663a0da52717891d8ef"},
            (LifecycleKind.OOM_KILL, "", None, ""),
            id="kernel-oom-kill",
        ),
        pytest.param(
            {"MESSAGE_ID": "5eb03494b6584870a536b337290809b3"},
            (LifecycleKind.AUTO_RESTART, "", None, ""),
            id="auto-restart",
        ),
    ],
)
def test_what_systemd_says(fields: dict[str, object], event: tuple[object, ...]):
    """Its messages by their ids, with what they carry."""
    said = entry_from_journal(SYSTEMD | fields).lifecycle
    assert (said.kind, said.exit_code, said.exit_status, said.result) == event


def test_a_start_that_somebody_cancelled_did_not_fail():
    """One message id serves every start job that did not end well."""
    cancelled = {"MESSAGE_ID": "be02cf6855d2428ba40df7e9d022f03d", "JOB_RESULT": "canceled"}
    assert entry_from_journal(SYSTEMD | cancelled) is None


def test_dropped_lines_are_reported_by_journalds_driver():
    """Its own transport cannot be forged; the run's id has a stray sign in front in real journals."""
    fields = {
        "_TRANSPORT": "driver",
        "MESSAGE_ID": "a596d6fe7bfa4994828e72309e95d61e",
        "MESSAGE": "Suppressed 2481 messages from vllm-a.service",
        "OBJECT_SYSTEMD_INVOCATION_ID": "=" + "1" * 32,
    }
    entry = entry_from_journal(fields)
    assert (entry.unit, entry.invocation) == ("vllm-a.service", "1" * 32)
    assert entry.lifecycle == Lifecycle(LifecycleKind.SUPPRESSED, count=2481, text=fields["MESSAGE"])
    assert entry_from_journal(fields | {"_TRANSPORT": "journal"}) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param("said", "said", id="text"),
        pytest.param(b"\xff", b"\xff", id="bytes"),
        pytest.param([13, 255], b"\r\xff", id="numbers"),
        pytest.param(None, None, id="too-long-to-export"),
        pytest.param(["first", "second"], "first", id="repeated"),
        pytest.param([[1, 2], [3]], None, id="repeated-numbers"),
        pytest.param([1, 999], None, id="no-bytes"),
        pytest.param({}, None, id="nonsense"),
    ],
)
def test_a_message_in_any_shape(value: object, message: object):
    """JSON gives bytes as numbers, python-systemd as bytes, and either may give a list."""
    assert entry_from_journal(OWN | {"MESSAGE": value}).message == message


def test_fields_may_be_bytes():
    """python-systemd gives them so when it converts nothing."""
    raw = {name: value.encode() if name != "MESSAGE" else value for name, value in OWN.items()}
    assert entry_from_journal(raw) == entry_from_journal(OWN)


EXPORT = (
    b"__CURSOR=s=1\n_TRANSPORT=stdout\n_SYSTEMD_UNIT=vllm-a.service\n_SYSTEMD_INVOCATION_ID=" + b"1" * 32 + b"\n"
    b"MESSAGE\n\x05\0\0\0\0\0\0\0a\nb=\xff\n\n"
)


def test_the_export_format_holds_binary_fields():
    """A length, then bytes that may hold newlines and signs."""
    assert [entry.message for entry in read(EXPORT.splitlines(keepends=True))] == [b"a\nb=\xff"]


@pytest.mark.parametrize("end", range(0, len(EXPORT), 7))
def test_an_export_that_was_cut_off_is_read_as_far_as_it_goes(end: int):
    """Wherever it ends."""
    assert len(list(read_export([EXPORT[:end]]))) <= 1


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param([], id="empty"),
        pytest.param([b"\n", b"\n"], id="blank"),
        pytest.param([b'{"__CURSOR": "x"\n', b"[1]\n", b"5\n"], id="broken-json"),
        pytest.param([b'{"__CURSOR": "x", "MESSAGE": ' + b"[" * 5000 + b"\n"], id="deep-json"),
        pytest.param([b"__CURSOR=x\n", b"MESSAGE\n", b"\xff" * 8], id="an-absurd-length"),
    ],
)
def test_broken_input_gives_no_entry(stream: list[bytes]):
    """And no exception."""
    assert [entry for entry in read(stream) if entry.message] == []


def test_lines_cut_by_journald_are_marked():
    """48 KiB and more: the next entry is the rest of it."""
    assert entry_from_journal(OWN | {"_LINE_BREAK": "line-max"}).cut
    assert not entry_from_journal(OWN | {"_LINE_BREAK": "pid-change"}).cut
