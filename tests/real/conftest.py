"""Collected only when a release is named, as `./dev test-vllm` does: one start takes the better part of a minute."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.live.fleet import Fleet
from tests.real.install import RealVllm, install
from tests.real.machine import stage
from tests.sandbox import CLONE, HOSTNAME, Sandbox

VERSION = os.environ.get("TEST_VLLM", "")
collect_ignore_glob = [] if VERSION else ["*"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`./dev test-vllm --record`."""
    parser.addoption("--record", action="store_true", help="put the logs of the failures into tests/corpus")


@pytest.fixture(scope="session")
def vllm() -> RealVllm:
    """The release, installed."""
    return install(VERSION)


@pytest.fixture
def fleet(vllm: RealVllm) -> Iterator[Fleet]:
    """A host with our daemon, and with that release in place of the simulator."""
    with Sandbox(visible=[vllm.home]) as box:
        fleet = Fleet(box)
        stage(box, vllm)
        yield fleet


@pytest.fixture
def record(request: pytest.FixtureRequest, vllm: RealVllm) -> Callable[[str, str, bytes], None]:
    """`record(case, rule, log)` puts a log into the corpus, with `--record`; nothing in it names this machine."""

    def put(case: str, rule: str, log: bytes) -> None:
        if request.config.getoption("--record"):
            place = CLONE / "tests" / "corpus" / rule / f"{vllm.version}-{case}.log"
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(log.replace(sys.base_prefix.encode(), b"/usr").replace(HOSTNAME.encode(), b"gpu01"))

    return put
