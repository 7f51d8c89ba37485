"""All remedies under way, carried out in step: what several units want done is one call of `systemctl` for all of them.

Where sixty-four services fail in the same moment, sixty-four reloads of systemd would take a minute, and one is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vllm_supervisor import units
from vllm_supervisor.errors import HostError, LockedError, StoreError, SupervisorError, TimedOutError
from vllm_supervisor.glance import Glance
from vllm_supervisor.host import clock, files, log, systemd
from vllm_supervisor.inforce import InForce
from vllm_supervisor.paths import Paths
from vllm_supervisor.recovery import Act, Recovery, Steps, Until
from vllm_supervisor.store import Store, Task

RETRY_S = 10.0
"""Pause before a step that the host refused is tried again."""


@dataclass(slots=True)
class _UnderWay:
    item: InForce
    steps: Steps
    not_before_s: float
    until: Until | None = None


class Recoveries:
    """The remedies under way, one for each service at the most.

    Args:
        paths: where things are.
        store: where the tasks are.
        host: what units are rendered for.
        killed: unit -> invocation that was killed last.
        glance: where those that work on units look.
    """

    def __init__(self, paths: Paths, store: Store, host: units.Host, killed: dict[str, str], glance: Glance) -> None:
        self._paths, self._store, self._host, self._killed, self._glance = paths, store, host, killed, glance
        self._under_way: dict[str, _UnderWay] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._under_way))

    def take_up(self, item: InForce, task: Task, *, not_before_s: float = 0.0) -> None:
        """Carry out a task from now on, or from a monotonic time on, in place of another on the same service."""
        recovery = Recovery(self._paths, self._store, self._host, item, task, self._killed, self._glance)
        self._under_way[task.service] = _UnderWay(item, recovery.steps(), not_before_s)

    def advance(self) -> list[str]:
        """Take all as far as they come without waiting. Returns the units of those that ended.

        Raises:
            StoreError: nothing can be committed.
            TimedOutError: systemd hangs.
        """
        ended: list[str] = []
        while able := self._able():
            try:
                with files.exclusive(self._paths.lock, timeout_s=0):
                    self._step(able, ended)
            except LockedError:
                break  # another of ours is changing units, `apply` for one
        return ended

    def _able(self) -> list[str]:
        """Those that wait for nothing, neither for a time nor for the host nor for the end of a pause."""
        self._renew()
        pauses = self._store.pauses() if self._under_way else {}
        found = []
        for name, mine in self._under_way.items():
            if "" in pauses or name in pauses or clock.monotonic_s() < mine.not_before_s:
                continue
            if mine.until is None or mine.until():
                found.append(name)
        return found

    def _renew(self) -> None:
        self._glance.renew(mine.item.unit for mine in self._under_way.values())

    def _step(self, able: Sequence[str], ended: list[str]) -> None:
        """Let each say what is to be done to its unit, and then do it to all of them."""
        self._renew()
        asked: dict[Act, list[str]] = {}
        for name in able:
            mine = self._under_way[name]
            mine.until = None
            said = self._guarded(name, mine.steps, ended)
            if isinstance(said, Act):
                asked.setdefault(said, []).append(name)
            else:
                mine.until = said
        for act, names in asked.items():
            self._act(act, names, ended)

    def _guarded(self, name: str, steps: Steps, ended: list[str]) -> Act | Until | None:
        try:
            return next(steps)
        except StopIteration:
            self._end(name, ended)
        except (StoreError, TimedOutError):
            raise
        except SupervisorError as e:
            self._refused(name, e, ended)
        return None

    def _act(self, act: Act, names: Sequence[str], ended: list[str]) -> None:
        by_unit = {self._under_way[name].item.unit: name for name in names}
        try:
            _DO[act](list(by_unit))
        except TimedOutError:
            raise
        except HostError as e:
            for unit in systemd.named_in(e, list(by_unit)):
                self._refused(by_unit[unit], e, ended)

    def _refused(self, name: str, error: SupervisorError, ended: list[str]) -> None:
        """Every step is idempotent: begin again, a little later."""
        item = self._under_way[name].item
        log.say(log.ERROR, f"cannot carry out the remedy: {error}", unit=item.unit)
        self._end(name, ended)
        if task := self._store.tasks().get(name):
            self.take_up(item, task, not_before_s=clock.monotonic_s() + RETRY_S)

    def _end(self, name: str, ended: list[str]) -> None:
        ended.append(self._under_way.pop(name).item.unit)


def _reload(names: Sequence[str]) -> None:
    # Asked of systemd, not of the writes: we may have been killed between those and this.
    if any(state.needs_reload for state in systemd.show(names).values()):
        systemd.daemon_reload()


def _after_reset(act: Callable[[Sequence[str]], None]) -> Callable[[Sequence[str]], None]:
    """With a start counter that begins anew."""

    def do(names: Sequence[str]) -> None:
        systemd.reset_failed(names)
        act(names)

    return do


_DO: dict[Act, Callable[[Sequence[str]], None]] = {
    Act.RELOAD: _reload,
    Act.KILL: systemd.kill,
    Act.START: _after_reset(systemd.start),
    Act.RESTART: _after_reset(systemd.restart_unless_stopped),
    Act.STOP: _after_reset(lambda names: systemd.stop(names, block=False, override=False)),
}
