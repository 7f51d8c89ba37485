"""Render vLLM services as systemd units and bring them up again when sampler warm-up runs out of GPU memory."""

__version__ = "0.1.0"
