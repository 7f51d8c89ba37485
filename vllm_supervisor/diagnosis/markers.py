"""How far a start is: the lines of a healthy one, and what they tell about the run.

Markers stand at the beginning of a line of level INFO, or are progress bars without a level. They move the phase and
the progress; they are no evidence of a failure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_supervisor.diagnosis.model import Phase

KEY_LENGTH = 6
"""Characters of a marker's beginning that lines are looked up by."""

_VERSION = r"(?P<version>\d{1,4}\.\d{1,4}[\w.+-]{0,60})"


@dataclass(frozen=True, slots=True)
class Marker:
    """One line of a healthy start.

    Attributes:
        begin: how the text begins; at least `KEY_LENGTH` characters.
        pattern: the text, from its beginning; a group `version` is vLLM's version, any other a number.
        phase: the phase that begins here; None for a line that only tells something.
        starts: True when a run prints it once, at its very beginning.
    """

    begin: str
    pattern: re.Pattern[str]
    phase: Phase | None = None
    starts: bool = False


def _marker(begin: str, phase: Phase | None = None, *, pattern: str = "", starts: bool = False) -> Marker:
    return Marker(begin, re.compile(pattern or re.escape(begin)), phase, starts)


MARKERS = (
    _marker("vLLM API server version", pattern="vLLM API server version " + _VERSION, starts=True),
    _marker("vLLM server version", pattern="vLLM server version " + _VERSION, starts=True),
    _marker(" ▄▄ ▄█ █", pattern=r"[ ▄▀█]{8,60} version " + _VERSION, starts=True),
    _marker("non-default args: "),
    _marker("Chunked prefill is enabled with max_num_batched_tokens="),
    _marker("Initializing a V", pattern=r"Initializing a V\d LLM engine \(v" + _VERSION),
    _marker("Initializing an LLM engine", pattern=r"Initializing an LLM engine \(v" + _VERSION),
    _marker("Starting to load model ", Phase.LOADING),
    _marker("Loading model from scratch", Phase.LOADING),
    _marker("Loading ", Phase.LOADING, pattern=r"Loading \S{1,40} checkpoint shards\b"),
    _marker("Model loading took ", Phase.PROFILING),
    _marker("Warming up model for the compilation", Phase.PROFILING),
    _marker("Encoder cache will be initialized", Phase.PROFILING),
    _marker("Dynamo bytecode transform time", Phase.PROFILING),
    _marker("Profiling CUDA graph memory", Phase.PROFILING),
    _marker(
        "Available KV cache memory",
        Phase.KV_CACHE,
        pattern=r"Available KV cache memory: (?P<kv_available_gib>-?\d{1,6}(?:\.\d{1,6})?) GiB",
    ),
    _marker("Explicitly set ", Phase.KV_CACHE, pattern=r"Explicitly set \(\S{1,20}/\S{1,20}\) GiB for KV cache"),
    _marker("GPU KV cache size", Phase.KV_CACHE),
    _marker("CPU KV cache size", Phase.KV_CACHE),
    _marker("XPU KV cache size", Phase.KV_CACHE),
    _marker("Compile and warming up model", Phase.WARM_UP),
    _marker("JIT kernel warmup", Phase.WARM_UP),
    _marker("DeepGEMM warmup", Phase.WARM_UP),
    _marker("Capturing CUDA graph", Phase.GRAPH_CAPTURE),
    _marker("Capturing cudagraphs", Phase.GRAPH_CAPTURE),
    _marker("Graph capturing finished", Phase.WARM_UP),
    _marker("init engine (profile", Phase.WARM_UP),
    _marker("Application startup complete.", Phase.READY, pattern=r"Application startup complete\.\s*\Z"),
    _marker("[shutdown] EngineCore: trigger received signal"),
    _marker("[shutdown] API server: shutdown triggered"),
)

_INDEX: dict[str, tuple[Marker, ...]] = {}
for _each in MARKERS:
    _INDEX[_each.begin[:KEY_LENGTH]] = (*_INDEX.get(_each.begin[:KEY_LENGTH], ()), _each)

KEYS_TEXT = frozenset(_INDEX)
KEYS_BYTES = frozenset(key.encode()[:KEY_LENGTH] for key in _INDEX)

SHARDS = re.compile(r"Loading \S{1,40} checkpoint shards[^:]{0,40}:\s{1,9}(\d{1,3})% Completed \| (\d{1,6})/(\d{1,6})")


def find(text: str) -> tuple[Marker, dict[str, str]] | None:
    """The marker a line is, if any, and what its groups tell."""
    for marker in _INDEX.get(text[:KEY_LENGTH], ()):
        if found := marker.pattern.match(text):
            return marker, {name: value for name, value in found.groupdict().items() if value is not None}
    return None
