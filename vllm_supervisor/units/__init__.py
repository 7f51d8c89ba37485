"""Service and cap in, unit text out; and what can be told from such a text. Pure."""

from vllm_supervisor.units.argv import Cap, digest, effective, fingerprint, serve_argv
from vllm_supervisor.units.options import Option, complaints, read_options
from vllm_supervisor.units.quoting import environment_assignment, exec_word
from vllm_supervisor.units.render import Host, base_url, ordering, render, render_all, service_name, unit_name
from vllm_supervisor.units.text import RUN_VARIABLE, Header, header, intact, learned, needs_restart, run_hash

__all__ = [
    "RUN_VARIABLE",
    "Cap",
    "Header",
    "Host",
    "Option",
    "base_url",
    "complaints",
    "digest",
    "effective",
    "environment_assignment",
    "exec_word",
    "fingerprint",
    "header",
    "intact",
    "learned",
    "needs_restart",
    "ordering",
    "read_options",
    "render",
    "render_all",
    "run_hash",
    "serve_argv",
    "service_name",
    "unit_name",
]
