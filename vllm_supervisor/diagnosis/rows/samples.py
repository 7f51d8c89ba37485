"""Builds sample lines: what vLLM 0.32 puts around a message."""

from __future__ import annotations

READY = "(APIServer pid=7) INFO:     Application startup complete.\n"
_HEAD = "(EngineCore pid=9) {level} 11-29 15:09:08 [core.py:1510] "


def error(text: str) -> str:
    """A record of level ERROR."""
    return "\n".join(_HEAD.format(level="ERROR") + line for line in text.split("\n"))


def info(text: str) -> str:
    """A record of level INFO."""
    return _HEAD.format(level="INFO") + text


def warning(text: str) -> str:
    """A record of level WARNING."""
    return _HEAD.format(level="WARNING") + text


def traceback(*frames: str, last: str) -> str:
    """A traceback of these `file.py:function` frames, logged at level ERROR."""
    shown = ['  File "/opt/vllm/{}", line 1, in {}'.format(*frame.split(":")) for frame in frames]
    return error("\n".join(["Traceback (most recent call last):", *shown, last]))


def relayed(message: str) -> str:
    """What EngineCore raises when a worker raised this."""
    return f"RuntimeError: Worker failed with error '{message}', please check the stack trace above for the root cause"


def invalid(config: str, *details: str) -> str:
    """Pydantic's report on a configuration class."""
    return "\n".join([f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}", *details])
