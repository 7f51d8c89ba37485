"""Files that somebody besides root may write to, and what is no file: refused before they are read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from vllm_supervisor.config import load
from vllm_supervisor.config.load import MAX_SERVICES
from vllm_supervisor.errors import ConfigError, StoreError
from vllm_supervisor.store import Store
from vllm_supervisor.trust import distrusted

ENTRY = "services: {a: {model: m, executable: /v}}\n"


def status(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("of", "why"),
    [
        pytest.param(status(0o644), "", id="roots"),
        pytest.param(status(0o640, gid=7), "", id="readable-for-a-group"),
        pytest.param(status(0o664), "", id="writable-for-roots-group"),
        pytest.param(status(0o664, gid=7), "group 7 may write to it", id="writable-for-a-group"),
        pytest.param(status(0o646), "every user may write to it", id="writable-for-all"),
        pytest.param(status(0o600, uid=7), "its owner is user 7, not root", id="somebodys"),
    ],
)
def test_whom_root_believes(of: os.stat_result, why: str) -> None:
    """As sudo has it."""
    assert distrusted(of) == why


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of root's are to be made")


@pytest.fixture
def main(tmp_path: Path) -> Path:
    path = tmp_path / "etc/config.yaml"
    path.parent.mkdir()
    path.write_text(ENTRY)
    path.chmod(0o644)
    return path


@needs_root
def test_a_file_of_roots_is_believed(main: Path) -> None:
    assert [*load(main, guarded=True).services] == ["a"]


@needs_root
@pytest.mark.parametrize("path", ["none/config.yaml", "etc/none.yaml", "etc/config.yaml/none.yaml"])
def test_a_file_that_is_not_there_is_said_to_be(main: Path, tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / path, guarded=True)


@needs_root
def test_a_writable_file_is_refused_with_the_command_that_mends_it(main: Path) -> None:
    """No service of it is used; whoever only looks, without being root, is not bothered."""
    main.chmod(0o666)

    found = load(main, guarded=True)

    assert found.services == {}
    assert [str(problem) for problem in found.problems] == [
        f"{main}: cannot use the file: every user may write to it; `chown root:root {main} && chmod go-w {main}`"
    ]
    assert load(main).services.keys() == {"a"}


@needs_root
@pytest.mark.parametrize("place", ["etc", "etc/conf.d", "."])
@pytest.mark.parametrize("mode", [0o777, 0o707])
def test_a_writable_directory_is_refused(main: Path, tmp_path: Path, place: str, mode: int) -> None:
    """Whoever may write to it may put another file in its place, or one more beside it."""
    directory = tmp_path / place
    directory.mkdir(exist_ok=True)
    directory.chmod(mode)

    with pytest.raises(ConfigError, match="every user may write to it") as caught:
        load(main, guarded=True)

    assert f"chmod go-w {directory.resolve()}" in caught.value.hint


@needs_root
def test_a_link_through_a_directory_of_somebodys_is_refused(main: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    main.rename(elsewhere / "real.yaml")
    main.symlink_to(elsewhere / "real.yaml")
    assert load(main, guarded=True).services
    os.chown(elsewhere, 7, 7)

    with pytest.raises(ConfigError, match="owner is user 7"):
        load(main, guarded=True)


@needs_root
def test_one_writable_file_of_several_is_left_out(main: Path) -> None:
    """The others go on."""
    more = main.parent / "conf.d/b.yaml"
    more.parent.mkdir()
    more.write_text(ENTRY.replace("{a", "{b"))
    more.chmod(0o646)

    found = load(main, guarded=True)

    assert ([*found.services], found.broken) == (["a"], {more})


@pytest.mark.parametrize("kind", ["pipe", "zero"])
@pytest.mark.parametrize("place", ["config.yaml", "conf.d/b.yaml"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str, place: str) -> None:
    """A pipe that nobody writes to, a device that never ends."""
    main, path = tmp_path / "config.yaml", tmp_path / place
    path.parent.mkdir(exist_ok=True)
    main.write_text("")
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")

    assert [problem.message for problem in load(main).problems] == ["it is a pipe or a device"]


def test_a_name_that_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    """It stands in the header of units and in messages: a line break, an escape sequence, what is not UTF-8."""
    (tmp_path / "conf.d").mkdir()
    main = tmp_path / "config.yaml"
    main.write_text("")
    for name in (b"a\n[Service].yaml", b"\x1b[2J.yaml", b"\xff.yaml", "\u2028.yaml".encode()):
        (tmp_path / "conf.d" / os.fsdecode(name)).write_text(ENTRY)

    found = load(main)

    assert found.services == {}
    assert len(found.problems) == 4
    assert "".join(map(str, found.problems)).isprintable()
    with pytest.raises(ConfigError, match="name holds what cannot be shown"):
        load(tmp_path / "a\nb.yaml")


def test_more_services_than_any_host_runs_are_refused(tmp_path: Path) -> None:
    """They are compared in pairs: a file of 1 MiB could hold as many as take hours."""
    main = tmp_path / "config.yaml"
    main.write_text("services:\n" + "".join(f" s{number}: {{}}\n" for number in range(MAX_SERVICES + 1)))

    with pytest.raises(ConfigError, match="1001 services, of 1000 at the most"):
        load(main)


@needs_root
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("directory", "file", "link"),
    [(0o777, 0o600, False), (0o700, 0o666, False), (0o700, 0o600, True)],
    ids=["directory", "file", "link"],
)
def test_a_store_that_others_may_write_to_is_refused(
    tmp_path: Path, directory: int, file: int, *, link: bool, read_only: bool
) -> None:
    """Whoever may write to it decides what root renders; and root writes through no link in its place."""
    path = tmp_path / "state/store.sqlite"
    path.parent.mkdir()
    Store(path).close()
    if link:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.chmod(file)
    path.parent.chmod(directory)

    with pytest.raises(StoreError, match=r"cannot (trust|open) the store"):
        Store(path, read_only=read_only)
