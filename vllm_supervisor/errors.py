"""The exceptions we raise on purpose, and the exit code each of them ends the program with.

An expected failure is one line and a hint, never a traceback; a traceback is a bug. The numbers above 2 that exist in
sysexits.h are taken from there, since `systemctl status` shows those by name.
"""

from __future__ import annotations

from collections.abc import Iterable

OK = 0
FAILED = 1  # the gate: its process ended before it served; and Python after a traceback, which is a bug
USAGE = 2  # click's own code for a command line it cannot parse
CHANGES = 3  # `plan` found something to change
INTERRUPTED = 130  # as a shell reports a process ended by SIGINT
UNREAD = 141  # likewise by SIGPIPE: the reader of our output went away

# What `classify` found, for scripts: 0 when nothing failed.
CLASSES = {"none": 0, "lower": 10, "set": 11, "wait": 12, "report": 13}


class SupervisorError(Exception):
    """Base of everything raised on purpose.

    Args:
        message: one sentence (or a list of findings, one a line) that starts with what could not be done.
        hint: what the operator can do about it; printed on a line of its own.
    """

    exit_code = FAILED
    hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint or type(self).hint


class NotServedError(SupervisorError):
    """Apply did its part, and a service did not come up."""

    exit_code = 4


class ConfigError(SupervisorError):
    """The operator's file is wrong; nothing on the host was touched."""

    exit_code = 78  # EX_CONFIG; our unit lists it in RestartPreventExitStatus=


class PermissionDeniedError(SupervisorError):
    """The kernel or systemd did not let us."""

    exit_code = 77  # EX_NOPERM
    hint = "run it as root"


class JournalError(SupervisorError):
    """The journal cannot be read; not a matter of rights, since who may read none of it is shown an empty one."""

    exit_code = 74  # EX_IOERR


class HostError(SupervisorError):
    """systemd, or a program of the host, did not do what was asked."""

    exit_code = 71  # EX_OSERR


class TimedOutError(HostError):
    """A program of the host did not end in its time."""


class LockedError(HostError):
    """Another process of ours is changing units."""


class StoreError(SupervisorError):
    """The store cannot be opened or is of a newer version than this program."""

    exit_code = 74  # EX_IOERR


class DamagedStoreError(StoreError):
    """What the store's file holds is no longer what was written."""

    hint = "vllm-supervisor.service when it starts, and `vllm-supervisor apply`, keep it aside and rebuild it"


def nothing_applied(store: object) -> StoreError:
    """What a command says that needs a store where there is none."""
    return StoreError(f"cannot find {store}: nothing was applied on this host yet", hint="vllm-supervisor apply")


def no_such_service(doing: str, name: str, there: Iterable[str]) -> ConfigError:
    """What a command says to a name that is not among those in force; `doing` is a verb, such as "forget"."""
    return ConfigError(f"cannot {doing} {name!r}: no such service", hint=f"there are: {', '.join(there) or 'none'}")
