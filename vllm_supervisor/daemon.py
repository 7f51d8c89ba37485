"""The daemon: follow the journal, diagnose, decide, commit, act; one thread, one loop.

Nothing of importance is in memory. What was seen can be read again from the journal, and is, at every start and reload;
what was decided is in the store before a unit is touched. So it may be killed at any point and goes on from there.

It is over 300 lines since the loop and all it holds are one thing.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import FrameType

from vllm_supervisor import inforce, programs, salvage
from vllm_supervisor.diagnosis import Diagnosis, entry_from_journal, worth_reading
from vllm_supervisor.errors import HostError, StoreError, SupervisorError, TimedOutError
from vllm_supervisor.follow import Case, Follower
from vllm_supervisor.glance import Glance
from vllm_supervisor.host import clock, gpu, journal, log, systemd
from vllm_supervisor.host.journal import Journal, unit_matches
from vllm_supervisor.host.notify import Notifier, status_for, watchdog_interval_s
from vllm_supervisor.host.systemd import UnitState
from vllm_supervisor.inforce import InForce
from vllm_supervisor.judgement import Evidence, Judge
from vllm_supervisor.paths import Paths
from vllm_supervisor.recoveries import RETRY_S, Recoveries
from vllm_supervisor.recovery import TOLD_TIMEOUT_S
from vllm_supervisor.store import Kind, Task, TaskKind

BATCH = 5_000
"""Entries taken before the watchdog is fed and signals are looked at: a few milliseconds' worth."""

EAGER_S = 0.05
"""Pause between looks at the journal while a service starts; entries can be read before journald announces them."""

QUIET_S = 1.0
"""Pause between looks at the journal while no service starts: all of the host writes to it, and every line of others
would wake us. A service that fails while it serves is noticed so much later."""

EXPECTANT_S = 5.0
"""After reading what is in force, which is when `apply` starts services, for so long there is no such pause."""

REFRESH_S = 2.0
"""How often the progress of starting services is looked at and passed on to systemd."""

SETTLED_S = 600.0
"""A service that served for so long has its start counter cleared. The start limit is there to end a loop of failing
starts; its window is hours long, since a start is, and crashes hours apart must not add up to it."""

CURSOR_S = 60.0
"""How often the cursor is stored when nothing was learned; reading a minute of journal again is harmless."""


class Daemon:
    """Everything the loop holds.

    Args:
        paths: where things are.

    Raises:
        SupervisorError: systemd, the journal or the store cannot be used; said before systemd hears READY=1.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._host = inforce.this_host()
        self._notifier = Notifier()
        programs.while_waiting(self._notifier.watchdog)
        self._stopping = self._reloading = self._behind = False
        self._killed: dict[str, str] = {}
        self._glance = Glance()
        self._open()
        for task in self._store.tasks().values():
            if item := self._services.get(task.service):
                self._judge.say_again(item, task)

    def run(self) -> int:
        """Work until SIGTERM or SIGINT, which leave the services running. Returns the exit code."""
        wakeup = self._catch_signals()
        self._ready()
        while not self._stopping:
            try:
                if self._reloading:
                    self._reload()
                if not self._turn() and not self._reloading:
                    self._sleep(wakeup)
            except SupervisorError as e:
                self._refused(e, wakeup)
            except OSError as e:
                self._refused(HostError(f"cannot go on: {e}"), wakeup)
            self._notifier.watchdog()
        self._notifier.stopping()
        with suppress(StoreError):  # a minute of journal is then read again
            self._keep_cursor()
        return 0

    # Getting ready

    def _open(self) -> None:
        """Read what is in force, find what happened before now, and take up what was left undone."""
        self._store = salvage.opened(self._paths)
        self._not_in_force = salvage.not_in_force(self._paths)
        self._judge = Judge(self._paths, self._store, self._killed, self._glance)
        self._version = self._store.version()
        self._services = inforce.services(self._store)
        self._pauses = self._store.pauses()
        self._by_unit = {item.unit: item for item in self._services.values()}
        names = {unit: item.applied.name for unit, item in self._by_unit.items()}
        self._follower = Follower(names, small_default=small_default(self._services.values(), gpu.read()))
        self._said: dict[str, str] = {}
        self._settled: dict[str, str] = {}
        self._down: dict[str, str] = {}
        self._journal = Journal()
        self._journal.match(unit_matches(self._by_unit) or [["_BOOT_ID=", "_PID=0"]])
        self._journal.seek_end()  # what is written from here on is read in any case
        self._states = systemd.show(list(self._by_unit))
        self._seek()
        self._changed = set(self._by_unit)
        self._expectant_until_s = clock.monotonic_s() + EXPECTANT_S
        self._refresh_at_s = self._cursor_at_s = 0.0
        self._recoveries = Recoveries(self._paths, self._store, self._host, self._killed, self._glance)
        for task in self._store.tasks().values():
            self._take_up(task)

    def _seek(self) -> None:
        """Stand where reading on tells all about runs that are not ready yet and misses nothing since last time."""
        begins = []
        for state in self._states.values():
            item = self._by_unit[state.name]
            if state.ready:
                self._follower.assume_served(state.name, state.invocation)
                if not self._store.happened(item.applied.name, state.invocation, Kind.READY):
                    self._judge.served(item, Evidence(state.invocation, item.applied.fingerprint, ""))
                continue
            if state.invocation and (begin := journal.begin(state.invocation)):
                begins.append(begin)
        first = min(begins, key=lambda mark: mark.monotonic_us, default=None)  # all of them in this boot
        if cursor := self._store.cursor:
            here = self._journal.seek_cursor(cursor)
            if first is None or (here is not None and here.before(first)):
                return
        if first is not None:
            self._journal.seek_mark(first)

    def _reload(self) -> None:
        self._reloading = False
        self._notifier.reloading(clock.monotonic_s())
        with suppress(StoreError):  # its file may have been removed, which opening it anew puts right
            self._keep_cursor()
        self._journal.close()
        self._store.close()  # its file may have been removed, and another be there when it is opened
        self._open()
        self._behind = False
        self._ready()

    def _ready(self) -> None:
        self._notifier.ready()
        paused = ", ".join(name or "all" for name in self._pauses)
        told = f"; paused: {paused}" if paused else ""
        log.say(log.INFO, f"services in force: {', '.join(self._services) or 'none'}{told}")
        if self._not_in_force:
            log.say(log.CRITICAL, salvage.words(self._not_in_force))

    def _refused(self, error: SupervisorError, wakeup: socket.socket) -> None:
        """Systemd, the journal or the store refused something in the middle of a turn: begin again, a little later.

        All that was taken in since the cursor was stored is read again, since it may not have been answered.

        Raises:
            SupervisorError: trying again cannot help; systemd starts us anew.
        """
        if why := beyond_mending(self._paths):
            log.say(log.CRITICAL, f"{error}; {why}: ending, to be started anew")
            raise error
        log.say(log.ERROR, f"{error}; trying again in {RETRY_S:g} s")
        self._notifier.ready()  # in case it was a reload that failed
        self._notifier.status(f"trying again every {RETRY_S:g} s: {error}")
        self._notifier.watchdog()
        self._reloading = self._behind = True
        poll = select.poll()  # a signal ends the wait
        poll.register(wakeup, select.POLLIN)
        poll.poll(1000 * RETRY_S)
        _drain(wakeup)

    def _catch_signals(self) -> socket.socket:
        """Signals wake the loop through a socket, so that none is lost between a look at the flags and the sleep."""
        reading, self._wakeup = socket.socketpair()
        reading.setblocking(False)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)

        def stop(_number: int, _frame: FrameType | None) -> None:
            self._stopping = True

        def reload(_number: int, _frame: FrameType | None) -> None:
            self._reloading = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, reload)
        return reading

    # The loop

    def _turn(self) -> bool:
        """Take in a batch; when caught up, answer and act. Returns whether there is more to read at once."""
        # Once a run has ended, every line of it says that more may follow; before that most say nothing.
        entries, passed = self._journal.read(BATCH, keep=None if self._follower.waiting else worth_reading)
        for fields in entries:
            entry = entry_from_journal(fields)
            if entry is None:
                continue
            if entry.lifecycle is not None and entry.unit in self._by_unit:
                self._changed.add(entry.unit)
            if served := self._follower.take(entry, clock.monotonic_s()):
                self._judge.served(self._by_unit[served.unit], self._evidence(served, None))
        if self._journal.caught_up:
            due = self._follower.due(clock.monotonic_s())
            self._glance.renew(case.unit for case, _ in due)
            for case, diagnosis in due:
                self._answer(case, diagnosis)
            self._changed.update(self._recoveries.advance())
            self._refresh()
            self._settle()
            self._tell_who_is_down()
            self._reloading |= self._others_in_force()
        if passed and clock.monotonic_s() > self._cursor_at_s:
            self._keep_cursor()
        return not self._journal.caught_up

    def _others_in_force(self) -> bool:
        """Whether other services or pauses are in force now: a SIGHUP sent while we started has reached nobody."""
        before, self._version = self._version, self._store.version()
        if before == self._version:
            return False
        return inforce.services(self._store) != self._services or self._store.pauses() != self._pauses

    def _sleep(self, wakeup: socket.socket) -> None:
        starting = any(state.starting for state in self._states.values())
        eager = starting or self._recoveries or self._follower.waiting
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        longest_s = EAGER_S if eager else min(watchdog_interval_s(), 3600)
        quiet_s = 0 if eager or clock.monotonic_s() < self._expectant_until_s else min(QUIET_S, longest_s / 2)
        if not poll.poll(1000 * quiet_s):  # a signal ends the pause
            poll.register(self._journal.fileno(), select.POLLIN)
            poll.poll(1000 * (longest_s - quiet_s))
        self._journal.process()
        _drain(wakeup)

    def _keep_cursor(self) -> None:
        self._cursor_at_s = clock.monotonic_s() + CURSOR_S
        if not self._behind and (cursor := self._journal.cursor()):
            with self._store.transaction():
                self._store.cursor = cursor

    # Answering and acting

    def _answer(self, case: Case, diagnosis: Diagnosis) -> None:
        try:
            task = self._judge.failed(self._by_unit[case.unit], self._evidence(case, diagnosis), diagnosis)
        except (StoreError, TimedOutError):
            raise  # not about this unit alone: all of them begin again, a little later
        except SupervisorError as e:
            log.say(log.ERROR, f"cannot answer a failure yet: {e}", unit=case.unit)
            self._follower.put_off(case, clock.monotonic_s() + RETRY_S)
            return
        if task is not None:
            self._take_up(task)

    def _evidence(self, case: Case, diagnosis: Diagnosis | None) -> Evidence:
        complete = case.tracker.evidence_complete
        return Evidence(case.invocation, case.fingerprint, self._journal.cursor(), diagnosis, complete)

    def _take_up(self, task: Task) -> None:
        item = self._services.get(task.service)
        if self._store.pause(task.service):
            return  # it stays in the store; resuming begins with reading everything anew
        if item is not None and task.kind is not TaskKind.START:  # a start is the business of `apply`
            self._recoveries.take_up(item, task)

    def _refresh(self) -> None:
        """Look again at what changed, and now and then at what starts; pass it on to systemd."""
        looked_at = self._changed
        if clock.monotonic_s() > self._refresh_at_s:
            self._refresh_at_s = clock.monotonic_s() + REFRESH_S
            looked_at = looked_at | {state.name for state in self._states.values() if state.starting}
        self._changed = set()
        self._states |= systemd.show(sorted(looked_at))
        for unit in looked_at:
            self._forward(self._states[unit])
        ready = sum(state.ready for state in self._states.values())
        names = ", ".join(self._recoveries)
        under_way = f"; remedy under way for {names}" if names else ""
        self._notifier.status(f"{ready} of {len(self._states)} services ready{under_way}")

    def _settle(self) -> None:
        for state in self._states.values():
            if "" in self._pauses or self._by_unit[state.name].applied.name in self._pauses:
                continue
            if settled(state, clock.monotonic_s()) and self._settled.get(state.name) != state.invocation:
                self._settled[state.name] = state.invocation
                systemd.reset_failed([state.name])

    def _tell_who_is_down(self) -> None:
        """Have it said of units that failed for good, once all that their runs left was answered."""
        failed = {state.name: state.invocation for state in self._states.values() if state.active_state == "failed"}
        new = failed.items() - self._down.items()
        if not new or self._follower.waiting:
            return
        self._glance.renew(unit for unit, _ in new)
        for unit, invocation in new:
            item, state = self._by_unit[unit], self._glance.state(unit)
            if item.applied.name in self._recoveries:
                continue
            if state.active_state == "failed" and state.invocation == invocation:
                self._judge.down(item, state)
            if clock.monotonic_s() - state.changed_s > TOLD_TIMEOUT_S:
                self._down[unit] = invocation

    def _forward(self, state: UnitState) -> None:
        if not (state.main_pid and (state.starting or state.ready)):
            return
        effective = inforce.state(self._store, self._by_unit[state.name]).effective
        at = "vLLM's default" if effective is None else str(effective)
        doing = "Serving" if state.ready else self._follower.case(state.name, state.invocation).tracker.progress
        text = f"{doing[0].upper()}{doing[1:]}, max-num-seqs {at}"
        if self._said.get(state.name) != state.invocation + text and status_for(state.main_pid, text):
            self._said[state.name] = state.invocation + text


def _drain(wakeup: socket.socket) -> None:
    with suppress(BlockingIOError):
        wakeup.recv(4096)


def beyond_mending(paths: Paths) -> str:
    """What this process lacks that only a new one can have, as a phrase; "" for nothing."""
    if not os.access(paths.state, os.W_OK):  # one that was removed and made again is not ours to write to
        return f"{paths.state} is not there or read-only, and it is systemd that makes it"
    try:
        os.close(os.dup(0))
    except OSError:
        return "no file descriptor is left"
    return ""


def small_default(services: Iterable[InForce], cards: Mapping[int, gpu.Gpu]) -> set[str]:
    """The units for which vLLM takes its small default however much memory their cards have: it asks the first one.

    Source: `EngineArgs.get_batch_defaults`; A100 since 0.9.0, GB10 since 0.33.0. Where it is wrong for an older release
    the value assumed is too low, never too high.
    """
    first = {item.unit: cards.get(item.service.devices[0]) for item in services}
    return {
        unit for unit, card in first.items() if card and ("a100" in card.name.lower() or "gb10" in card.name.lower())
    }


def settled(state: UnitState, now_s: float) -> bool:
    """Whether a service has served for so long, by the monotonic clock, that its earlier starts no longer count."""
    return state.ready and state.restarts > 0 and now_s - state.changed_s > SETTLED_S
