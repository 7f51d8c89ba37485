"""Every way a start of vLLM is known to fail, one row each.

Add a failure by adding a row with its samples, and its log under `tests/corpus/<id>/`.
"""

from __future__ import annotations

from vllm_supervisor.diagnosis.rows import arguments, host, memory, model_files, running
from vllm_supervisor.diagnosis.rule import Catalogue

CATALOGUE = Catalogue(
    (*memory.RULES, *arguments.RULES, *model_files.RULES, *host.RULES, *running.RULES, *arguments.ANY_REFUSAL)
)
