"""What no value shows by itself: rules between the values of a service, and between services."""

from __future__ import annotations

import functools
import operator
from pathlib import Path
from typing import Any

import pytest

from vllm_supervisor.config import Service, checks, load


def service(name: str = "a", **values: Any) -> Service:
    return Service.model_validate(
        {"name": name, "source": Path(f"{name}.yaml"), "model": "m", "executable": "/v", **values}
    )


def parallel(**sizes: int) -> dict[str, int]:
    return {name.replace("_", "-"): size for name, size in sizes.items()}


@pytest.mark.parametrize(
    ("values", "key", "message"),
    [
        pytest.param(
            {"max_num_seqs": 4},
            "remediation.floor",
            "it is above max_num_seqs (4), so nothing could ever be lowered",
            id="floor-above-declared",
        ),
        pytest.param(
            {"gpus": [0, 1], "arguments": parallel(tensor_parallel_size=2, pipeline_parallel_size=2)},
            "gpus",
            "its parallel sizes multiply to 4 GPUs, and 2 are listed",
            id="too-few-gpus",
        ),
        pytest.param(
            {"arguments": {"gpu-memory-utilization": "95"}},
            "arguments.gpu-memory-utilization",
            "not a part of the GPU's memory",
            id="percent",
        ),
        pytest.param(
            {"arguments": {"compilation-config": {"mode": 3}, "compilation-config.x": 1}},
            "arguments.compilation-config.x",
            "`compilation-config` is given whole as well, and vLLM would keep only one of the two",
            id="whole-and-dotted",
        ),
        pytest.param(
            {"arguments": {"x": ["a", "--port=1"]}},
            "arguments.x",
            "vLLM would take an item that begins with a dash for a flag",
            id="dash-in-list",
        ),
        pytest.param(
            {"arguments": {"config": "/x/y.json"}}, "arguments.config", "vLLM refuses other names", id="config"
        ),
    ],
)
def test_within_one_service(values: dict[str, Any], key: str, message: str) -> None:
    assert [(".".join(c.key), c.message) for c in checks.within(service(**values))] == [(key, message)]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"max_num_seqs": 8}, id="floor-at-declared"),
        pytest.param({"max_num_seqs": 4, "remediation": {"enabled": False}}, id="no-remedy-no-floor"),
        pytest.param({"gpus": [0, 1], "arguments": {"tensor-parallel-size": 2}}, id="as-many-gpus"),
        pytest.param({"gpus": [0], "arguments": {"tensor-parallel-size": 8, "nnodes": 8}}, id="over-nodes"),
        pytest.param(
            {"gpus": [0], "arguments": {"data-parallel-size": 8, "data-parallel-size-local": 1}}, id="local-replicas"
        ),
        pytest.param({"gpus": [0], "arguments": {"data-parallel-size": 8, "data-parallel-rank": 3}}, id="one-replica"),
        pytest.param(
            {"gpus": [0], "arguments": {"tensor-parallel-size": 8, "distributed-executor-backend": "ray"}}, id="ray"
        ),
        pytest.param({"arguments": {"tensor-parallel-size": "many"}}, id="not-a-number-is-for-vllm-to-refuse"),
        pytest.param({"arguments": {"config": "/run/credentials/vllm-a.service/vllm.yaml"}}, id="config"),
    ],
)
def test_nothing_wrong_within(values: dict[str, Any]) -> None:
    assert list(checks.within(service(**values))) == []


@pytest.mark.parametrize(
    ("arguments", "gpus"),
    [
        pytest.param({}, 1, id="one"),
        pytest.param(parallel(tensor_parallel_size=2, pipeline_parallel_size=3), 6, id="product"),
        pytest.param(parallel(prefill_context_parallel_size=2), 2, id="prefill-context"),
        pytest.param(parallel(tensor_parallel_size=2, data_parallel_size=4), 8, id="replicas"),
        pytest.param(parallel(decode_context_parallel_size=4), 1, id="decode-context-adds-none"),
        pytest.param(parallel(tensor_parallel_size=10**9), 256, id="bounded"),
    ],
)
def test_how_many_gpus_a_service_fills(arguments: dict[str, int], gpus: int) -> None:
    assert service(arguments=arguments).devices == tuple(range(gpus))


def on(gpus: list[int] | None, share: float | None = None, **more: int) -> dict[str, Any]:
    arguments = {**parallel(**more), **({} if share is None else {"gpu-memory-utilization": share})}
    return {"gpus": gpus, "arguments": arguments}


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        pytest.param(
            on([0], 0.6), on([0], 0.5), "GPU 0 is over-committed: a 0.6 + b 0.5 = 1.1 of its memory", id="sum"
        ),
        pytest.param(
            on([0]), on([0], 0.2), "GPU 0 is over-committed: a 0.9 + b 0.2 = 1.1 of its memory", id="default-share"
        ),
        pytest.param(
            on(None), on(None), "GPU 0 is over-committed: a 0.9 + b 0.9 = 1.8 of its memory", id="default-gpus"
        ),
        pytest.param(
            on(None, tensor_parallel_size=4),
            on([3]),
            "GPU 3 is over-committed: a 0.9 + b 0.9 = 1.8 of its memory",
            id="first-gpus",
        ),
        pytest.param(
            on([0, 1, 2], tensor_parallel_size=2),
            on([2, 1], tensor_parallel_size=2),
            "GPU 1 is over-committed: a 0.9 + b 0.9 = 1.8 of its memory",
            id="only-those-it-fills",
        ),
    ],
)
def test_a_gpu_cannot_hold_both(one: dict[str, Any], other: dict[str, Any], message: str) -> None:
    found = list(checks.between([service("a", port=1, **one), service("b", port=2, **other)]))

    assert [(c.service.name, c.message, [s.name for s in c.others]) for c in found] == [("b", message, ["a"])]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(on([0], 0.5), on([0], 0.5), id="full-but-not-over"),
        pytest.param(on([0]), on([1]), id="apart"),
        pytest.param(on([0, 1], 0.9), on([1], 0.9), id="listed-but-not-filled"),
    ],
)
def test_a_gpu_can_hold_both(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(checks.between([service("a", port=1, **one), service("b", port=2, **other)])) == []


def test_four_that_fit_exactly() -> None:
    """Their parts add up to a little more than 1 in binary."""
    shares = [0.2, 0.4, 0.3, 0.1]
    assert functools.reduce(operator.add, shares) > 1  # sum() itself makes up for it from Python 3.12 on

    assert (
        list(checks.between([service(f"s{i}", port=i + 1, **on([0], share)) for i, share in enumerate(shares)])) == []
    )


def test_over_commitment_is_told_once_for_the_same_services() -> None:
    both = [service(name, port=port, **on(None, tensor_parallel_size=8)) for name, port in (("a", 1), ("b", 2))]

    assert len(list(checks.between(both))) == 1


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        (None, None, True),
        (None, "127.0.0.1", True),
        ("0.0.0.0", "10.0.0.1", True),
        ("::", "::1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "10.0.0.1", False),
        ("::1", "127.0.0.1", False),
        ("gpu1", "127.0.0.1", False),
    ],
)
def test_one_port_on_two_addresses(one: str | None, other: str | None, *, clash: bool) -> None:
    both = [service("a", gpus=[0], host=one), service("b", gpus=[1], host=other)]

    assert [c.key for c in checks.between(both)] == [("port",)] * clash
    assert [c.key for c in checks.between(both[::-1])] == [("port",)] * clash


def test_both_files_of_a_clash_are_left_out(tmp_path: Path) -> None:
    """Whichever of the two is new: the one that runs must not lose its port to it."""
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "config.yaml").write_text(
        "defaults: {executable: /v}\nservices:\n  ok: {model: m, gpus: [5], port: 5}\n"
    )
    for gpu, name in enumerate(("a", "b")):
        (tmp_path / "conf.d" / f"{name}.yaml").write_text(f"services:\n  {name}: {{model: m, gpus: [{gpu}]}}\n")

    found = load(tmp_path / "config.yaml")

    assert list(found.services) == ["ok"]
    assert found.broken == {tmp_path / "conf.d" / "a.yaml", tmp_path / "conf.d" / "b.yaml"}
    (problem,) = found.problems
    assert (problem.file.name, problem.line, problem.key) == ("b.yaml", 2, "services.b.port")


def test_a_name_in_two_files(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "config.yaml").write_text("defaults: {executable: /v}\n")
    for name in ("x", "y"):
        (tmp_path / "conf.d" / f"{name}.yaml").write_text("services:\n  twin: {model: m}\n")

    found = load(tmp_path / "config.yaml")

    assert found.services == {}
    assert [p.message for p in found.problems if p.key == "services.twin"] == [
        f"{tmp_path}/conf.d/x.yaml has a service of that name too"
    ]


def test_a_port_that_many_want_is_told_once_for_each() -> None:
    """With all who want it, since none of their files may be used; not once for each pair, of which there are many."""
    many = [service(name, gpus=[number], port=1) for number, name in enumerate("abcd")]

    found = [(c.service.name, [other.name for other in c.others]) for c in checks.between(many)]

    assert found == [("b", ["a"]), ("c", ["a", "b"]), ("d", ["a", "b", "c"])]
