"""The harness is no decoration: with one thing broken on purpose in a copy of the package, the same runs turn red."""

from __future__ import annotations

import pytest

from tests.faults import fault
from tests.live.crash import losses, moments, not_intact, outcome, unsynced
from tests.live.fleet import VLLM, Fleet
from tests.live.test_interruption import (
    OTHER,
    ROOMY,
    applied,
    apply_that_changes,
    moment_of,
    recovering,
    recovery,
    uninterrupted,
)
from tests.live.test_races import SENTENCE
from tests.sandbox import CLONE
from tests.sandbox.root import INSTALLED


def plant(box, module, old, new):
    """Put a copy of the package before the real one, in which one text is another. Returns the environment for it."""
    text = (CLONE / "vllm_supervisor" / module).read_text()
    assert text.count(old) == 1, f"what was to be broken is no longer in {module}, once: {old!r}"
    box.run(["install", "-d", "/opt/planted"], check=True)
    box.run(["cp", "-rL", f"{INSTALLED}/src/vllm_supervisor", "/opt/planted"], check=True)
    box.write(f"/opt/planted/vllm_supervisor/{module}", text.replace(old, new))
    return {"PYTHONPATH": "/opt/planted"}


@fault(
    "planted: the unit is started before the decision is committed",
    made="a restart put before the transaction in a copy of judgement.py; the daemon is killed at the commit",
    promised="the harness reports a loss",
)
def test_acting_before_the_commit_is_caught(box, seen):
    commit = "        with self._store.transaction():\n            before = inforce.state("
    look = "            from vllm_supervisor.host import systemd\n"
    acts = f"        if todo:\n{look}            systemd.restart([item.unit])\n"
    rig = recovering(box, environment=plant(box, "judgement.py", commit, acts + commit))
    expected, found = uninterrupted(rig, starts=3)

    lost = losses(expected, outcome(recovery(rig, moment_of(found, "commit"))))

    assert lost
    seen(f"reported as lost: {', '.join(loss.partition(':')[0] for loss in lost)}")


IN_PLACE = (
    'tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix="~")',
    "os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), str(path)",
)


@fault(
    "planted: a unit is written in place",
    made="no temporary file in a copy of files.py; `apply` is killed at the write",
    promised="the harness reports a half-written unit",
)
def test_writing_in_place_is_caught(box, seen):
    rig, begin = apply_that_changes(box, environment=plant(box, "host/files.py", *IN_PLACE))
    _, _, trace = applied(rig, begin, None)

    begin()
    rig.run("apply", "--no-wait", moment=moment_of(moments(trace), "</etc/systemd/system/vllm-a.service>, "))

    assert not_intact(rig.look()) == ["vllm-a.service"]
    seen("reported as half-written: vllm-a.service")


@fault(
    "planted: a unit is renamed before it is on the disk",
    made="no fsync in a copy of files.py; `apply` is recorded",
    promised="the harness reports what a power cut could lose",
)
def test_not_syncing_is_caught(box, seen):
    rig, begin = apply_that_changes(
        box, environment=plant(box, "host/files.py", "os.fsync(file.fileno())", "file.fileno()")
    )
    _, _, trace = applied(rig, begin, None)

    assert [text.rpartition('"/etc/systemd/system/')[2].partition('"')[0] for text in unsynced(trace)] == [
        "vllm-a.service"
    ]
    seen("reported as not synced: vllm-a.service")


NEVER_READY = ("self.ready, self.phase = True, Phase.READY", "self.ready, self.phase = False, Phase.WARM_UP")
SAYS_IT_LATER = f"""#!/bin/sh
(while [ ! -e /run/say ]; do sleep 0.05; done; echo '{SENTENCE.replace("'", "")}' >&2; echo said >&2) &
exec {VLLM} "$@"
"""


@pytest.mark.parametrize("which", ["a copy in which no run is ever ready", "the package as it is"])
@fault(
    "planted: evidence after ready; {which}",
    made="a service that serves prints the sentence of the sampler",
    promised="the copy takes it for evidence, which the history shows, and the package does not",
)
def test_evidence_after_ready_is_caught(box, which, seen):
    planted = which.startswith("a copy")
    fleet = Fleet(box)
    environment = plant(box, "diagnosis/tracker.py", *NEVER_READY) if planted else {}
    more = "".join(f"Environment={name}={value}\n" for name, value in environment.items())
    box.write("/etc/systemd/system/vllm-supervisor.service.d/planted.conf", f"[Service]\n{more}")
    box.write("/opt/vllm/bin/later", SAYS_IT_LATER, mode=0o755)
    fleet.configure({"a": {**ROOMY, "executable": "/opt/vllm/bin/later"}, "b": OTHER})
    fleet.start_daemon()
    fleet.supervisor("apply")
    box.wait_until(lambda: [kinds(fleet, name)[-1] for name in "ab"] == ["ready", "ready"], "ready")

    box.write("/run/say", "")
    box.wait_until(lambda: box.journal("-u", "vllm-a", "--grep=^said$"), "the sentence")
    box.run(["systemctl", "restart", "vllm-b"], check=True)
    box.wait_until(lambda: kinds(fleet, "b").count("ready") == 2, "what was said after the sentence")

    assert (kinds(fleet, "a") == ["applied", "ready"]) is not planted
    seen(f"in the history: {', '.join(kinds(fleet, 'a'))}")


def kinds(fleet, name):
    return [row["kind"] for row in fleet.history(name)]
