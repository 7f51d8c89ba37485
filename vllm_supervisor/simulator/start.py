"""What all processes of one start know: the same facts, worked out once in the main process."""

from __future__ import annotations

import time
from typing import NamedTuple

from vllm_supervisor.simulator import memory
from vllm_supervisor.simulator.generations import Generation
from vllm_supervisor.simulator.log import Log
from vllm_supervisor.simulator.service import Service, card
from vllm_supervisor.simulator.settings import Settings
from vllm_supervisor.simulator.wording import Wording

# Shares of the time a start takes; the shards' is what an operator sees move.
_SHARES = {"device": 0.04, "load": 0.66, "profile": 0.12, "allocate": 0.02, "capture": 0.12, "warm-up": 0.04}


class Start(NamedTuple):
    """One start of one service on the pretended hardware."""

    settings: Settings
    generation: Generation
    wording: Wording
    service: Service
    runner: str
    layout: memory.Layout

    def log(self, name: str) -> Log:
        """The output of the calling process under that name."""
        return Log(self.wording, self.generation.prefix, name, debug=self.settings.log_requests)

    def seconds(self, phase: str) -> float:
        """How long a phase takes."""
        return self.settings.start_s * _SHARES[phase]

    def pause(self, phase: str) -> None:
        """Let a phase take its time."""
        time.sleep(self.seconds(phase))


def plan(settings: Settings, generation: Generation, wording: Wording, service: Service) -> Start:
    """Divide the card and choose the runner."""
    runner = settings.runner or generation.runner
    layout = memory.lay_out(
        card(service, settings, generation),
        utilization=service.utilization,
        max_num_seqs=service.max_num_seqs,
        sequences=memory.warm_up_batch(runner, service.max_num_seqs, service.max_num_batched_tokens),
        counts_graphs=generation.counts_graphs,
        profiles_sampler=runner == "v1",
    )
    return Start(settings, generation, wording, service, runner, layout)
