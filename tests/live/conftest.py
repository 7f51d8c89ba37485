"""A systemd of its own for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NoReturn, Protocol

import pytest

from tests import faults
from tests.sandbox import Sandbox, SandboxError, obstacle


class Boot(Protocol):
    """What the `boot` fixture gives: `boot(tmpfs={"/var/lib/x": "1M"})`, with the options of `Sandbox`."""

    def __call__(self, **options: Any) -> Sandbox: ...


def _without_a_sandbox(reason: str) -> NoReturn:
    """A machine that cannot boot one skips the live tests; in CI that would hide everything they hold."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _able() -> None:
    if reason := obstacle():
        _without_a_sandbox(reason)


@pytest.fixture
def boot() -> Iterator[Boot]:
    """Boot as many sandboxes as wanted, with options; all end with the test."""
    with ExitStack() as stack:

        def boot(**options: Any) -> Sandbox:
            try:
                return stack.enter_context(Sandbox(**options))
            except SandboxError as error:
                _without_a_sandbox(str(error))

        yield boot


@pytest.fixture
def box(boot: Boot) -> Sandbox:
    """Boot a fresh sandbox, 0.3 s."""
    return boot()


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Hold a row of the page of faults; see `tests/faults.py`."""
    return faults.recorder(request)
