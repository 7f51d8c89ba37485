"""Service and cap in, unit text out; and what can be told from such a text. Pure."""

from vllm_supervisor.units.argv import Cap, effective, fingerprint, serve_argv
from vllm_supervisor.units.quoting import environment_assignment, exec_word
from vllm_supervisor.units.render import Host, base_url, render, render_all, unit_name
from vllm_supervisor.units.text import Header, header, needs_restart, run_hash

__all__ = [
    "Cap",
    "Header",
    "Host",
    "base_url",
    "effective",
    "environment_assignment",
    "exec_word",
    "fingerprint",
    "header",
    "needs_restart",
    "render",
    "render_all",
    "run_hash",
    "serve_argv",
    "unit_name",
]
