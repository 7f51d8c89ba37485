"""What one service is: the keys of the file, their bounds, and the sentence that explains each of them.

The descriptions here are the ones in the JSON Schema that editors show. Rules that concern one value stand in `values`;
rules between values or services in `checks`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from vllm_supervisor.config import values
from vllm_supervisor.config.hardening import SCHEMA

DEFAULT_PORT = 8000
DEFAULT_USER = "vllm"
DEFAULT_START_TIMEOUT_S = 5400  # an hour of loading, and half as much again
# vLLM's default was 0.9 up to 0.20.1 and is 0.92 since; the lower one refuses nothing that a host may run.
DEFAULT_UTILISATION = 0.9


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)  # it may be a secret


class Utilization(_Model):
    """How far `gpu-memory-utilization` may be lowered, and by how much at a time."""

    step: StrictFloat = Field(default=0.02, ge=0.001, le=0.2, description="By how much it is lowered at a time.")
    floor: StrictFloat = Field(ge=0.05, lt=1, description="The lowest gpu-memory-utilization that may be set.")


class ModelLen(_Model):
    """How far `max-model-len` may be shortened."""

    floor: StrictInt = Field(ge=1, description="The shortest max-model-len, in tokens, that may be set.")


class Remediation(_Model):
    """Whether and how far flags may be changed when a start fails; all but max_num_seqs only where it is asked for."""

    enabled: StrictBool = Field(default=True, description="Whether a failed start may lower max_num_seqs at all.")
    floor: StrictInt = Field(default=8, ge=1, description="The lowest max_num_seqs that may be set.")
    max_attempts: StrictInt = Field(
        default=8, ge=1, le=64, description="How often a start may be answered before the service is left down."
    )
    gpu_memory_utilization: Utilization | None = Field(
        default=None,
        description=(
            "Lower gpu-memory-utilization, step by step, when CUDA graphs, kernel warm-up or autotuning run out of GPU "
            "memory; not done if left out."
        ),
    )
    max_model_len: ModelLen | None = Field(
        default=None,
        description=(
            "Set max-model-len to what vLLM itself says would fit, when one request of the full context does not; not "
            "done if left out."
        ),
    )
    enforce_eager: StrictBool = Field(
        default=False,
        description="Add enforce-eager when CUDA graphs run out of GPU memory and nothing gentler is left.",
    )


class Settings(_Model):
    """One `vllm serve`, as the operator writes it."""

    model: Annotated[
        values.Model,
        Field(description="What to serve: a Hugging Face repository (`org/model`) or a directory."),
    ]
    executable: Annotated[
        values.Program,
        Field(description="The `vllm` program to run, an absolute path; its directory comes first in PATH."),
    ]
    user: values.ServiceUser = Field(default=DEFAULT_USER, description="The system user the service runs as.")
    group: values.User | None = Field(default=None, description="The group it runs as; the user's own if left out.")
    environment: Mapping[values.Variable, values.VariableValue] = Field(
        default={},
        description="Environment variables; secrets belong under credentials, GPUs under gpus.",
        json_schema_extra=values.VARIABLE_NAMES,
    )
    credentials: Mapping[values.Credential, values.File] = Field(
        default={},
        description=(
            "Secrets by name: the file that holds each of them. The service sees a copy under "
            "/run/credentials/vllm-NAME.service/, nobody else does. HF_TOKEN is used for downloads."
        ),
        json_schema_extra=values.CREDENTIAL_NAMES,
    )
    gpus: values.Gpus | None = Field(
        default=None, description="GPU indices in PCI bus order, as nvidia-smi counts; all visible ones if left out."
    )
    host: values.Host | None = Field(default=None, description="The address to listen on; every address if left out.")
    port: StrictInt = Field(default=DEFAULT_PORT, ge=1, le=65535, description="The TCP port to listen on.")
    max_num_seqs: StrictInt | None = Field(
        default=None,
        ge=1,
        description="The most sequences served at a time; vLLM's own default for the card if left out.",
    )
    arguments: values.Arguments = Field(
        default={},
        description=(
            "Any other flag of `vllm serve`, as it spells it, without the dashes: true and false for switches, "
            "a list for several values, a mapping for JSON."
        ),
        json_schema_extra=values.FLAG_NAMES,
    )
    hardening: values.Hardening = Field(
        default={},
        description=(
            "Settings of systemd that confine the service, loosened: false leaves one out, another value takes its "
            "place."
        ),
        json_schema_extra=SCHEMA,
    )
    remediation: Remediation = Field(default=Remediation(), description="What may be done when a start fails.")
    start_timeout: StrictInt = Field(
        default=DEFAULT_START_TIMEOUT_S,
        ge=1,
        le=604800,
        description="Seconds a start may take, download, compilation and warm-up included, before it is given up.",
    )


class Service(Settings):
    """A service that can be rendered: its settings with all defaults applied, its name, and where it came from."""

    name: values.Name
    source: Path

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names clients may ask for; the first one is what vLLM calls the model in its answers."""
        given = self.arguments.get("served-model-name")
        names = given if isinstance(given, list) else [given] if given is not None else [self.model]
        return tuple(str(name) for name in names)

    @property
    def devices(self) -> tuple[int, ...]:
        """The GPUs it fills, as far as its flags tell; the first ones of the host where none are listed."""
        wanted = self.world_size
        return self.gpus[:wanted] if self.gpus is not None else tuple(range(wanted))

    @property
    def world_size(self) -> int:
        """GPUs used on this host: tensor x pipeline x prefill-context x local data parallel, over the nodes."""
        shards = 1.0
        for flag in ("tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size"):
            shards *= self.number(flag, 1)
        replicas = self.number("data-parallel-size-local", self.number("data-parallel-size", 1))
        if "data-parallel-rank" in self.arguments:  # one process of an external load balancer's set
            replicas = 1
        return max(1, min(values.MAX_GPUS, int(shards * replicas / max(1, self.number("nnodes", 1)))))

    @property
    def memory_share(self) -> float:
        """The part of each GPU's memory it takes, 0 to 1."""
        return self.number("gpu-memory-utilization", DEFAULT_UTILISATION)

    def number(self, flag: str, default: float) -> float:
        """The value of a numeric flag of `arguments`; `default` where it is not given or not a plain finite number."""
        value = self.arguments.get(flag)
        try:
            number = float(value) if isinstance(value, str) else default
        except ValueError:
            return default
        return number if math.isfinite(number) else default
