"""What was learned, what was promised and what happened, in one sqlite file.

Five things live here, and a remedy is a transaction over them: the services as `apply` last put them in force, the
caps with the fingerprint each holds for, the tasks (remedies that were decided and not yet carried out), the pauses,
and the history. The journal cursor is one row of `meta`, so that it is stored with what was learned up to it.
"""

from __future__ import annotations

from vllm_supervisor.store.records import (
    CHECKS,
    AppliedService,
    Happening,
    Kind,
    LearnedCap,
    Pause,
    Row,
    Task,
    TaskKind,
)
from vllm_supervisor.store.schema import MIGRATIONS
from vllm_supervisor.store.sqlite import HISTORY_ROWS, KEPT_US, Store, error

__all__ = [
    "CHECKS",
    "HISTORY_ROWS",
    "KEPT_US",
    "MIGRATIONS",
    "AppliedService",
    "Happening",
    "Kind",
    "LearnedCap",
    "Pause",
    "Row",
    "Store",
    "Task",
    "TaskKind",
    "error",
]
