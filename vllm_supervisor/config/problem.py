"""What is wrong with the operator's file, said so that it can be mended without asking back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor.redact import printable, redact


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend.

    Attributes:
        file: the file that holds it.
        line: 1-based line of the key, or None where the file as a whole is meant.
        key: the way to the setting, as in `services.minimax-m25.arguments.max-num-seqs`; empty for the whole file.
        value: what the operator wrote, shortened; empty where there is none, or where it is a secret.
        message: why it cannot be used.
        hint: what to do about it; empty where the message says all.
    """

    file: Path
    line: int | None
    key: str
    value: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """One line: place, key, value, reason, way out. A secret in any of them is masked."""
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        subject = f" {self.key}" if self.key else " the file"
        value = f" = {self.value}" if self.value else ""
        hint = f"; {self.hint}" if self.hint else ""
        return printable(redact(f"{place}: cannot use{subject}{value}: {self.message}")) + hint
