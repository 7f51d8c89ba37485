"""From log lines to a diagnosis: pure, on text that nobody vouches for.

A line is looked at (`worth_reading`), undressed (`lines`), matched against the rules (`CATALOGUE`) and noted by the
`Tracker` of its run, which answers what failed first and what that calls for. `Trackers` keeps many runs apart;
`entry_from_journal` and `read` make entries of a journal, or of a pasted log.
"""

from __future__ import annotations

from vllm_supervisor.diagnosis.gate import worth_reading
from vllm_supervisor.diagnosis.journal import (
    LIFECYCLE_IDS,
    STAMP_FINGERPRINT,
    STAMP_MAX_NUM_SEQS,
    STAMP_SERVICE,
    Entry,
    entry_from_journal,
    read_export,
    read_json,
)
from vllm_supervisor.diagnosis.model import Act, Diagnosis, Finding, Lifecycle, LifecycleKind, Phase, Rank
from vllm_supervisor.diagnosis.normalise import Line, lines
from vllm_supervisor.diagnosis.rows import CATALOGUE
from vllm_supervisor.diagnosis.rule import Catalogue, Rule
from vllm_supervisor.diagnosis.text import read, read_text
from vllm_supervisor.diagnosis.tracker import STOPPED, UNKNOWN, Tracker
from vllm_supervisor.diagnosis.trackers import Trackers

__all__ = [
    "CATALOGUE",
    "LIFECYCLE_IDS",
    "STAMP_FINGERPRINT",
    "STAMP_MAX_NUM_SEQS",
    "STAMP_SERVICE",
    "STOPPED",
    "UNKNOWN",
    "Act",
    "Catalogue",
    "Diagnosis",
    "Entry",
    "Finding",
    "Lifecycle",
    "LifecycleKind",
    "Line",
    "Phase",
    "Rank",
    "Rule",
    "Tracker",
    "Trackers",
    "entry_from_journal",
    "lines",
    "read",
    "read_export",
    "read_json",
    "read_text",
    "worth_reading",
]
