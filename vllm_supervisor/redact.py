"""What a text may show: no secret, and nothing that a terminal would act on. Pure.

A secret is told by the name before it (`api_key='…'`, `--api-key …`), or by the shape that its issuer gives it. What
quotes a log or repeats what the operator wrote goes through here, since histories and journals are read by more people
than may know a token.
"""

from __future__ import annotations

import re

MASK = "(not shown)"

_SECRET = re.compile(r".*(?:_SECRET|PASSWORD|PASSWD|API_?KEY).*|.*_TOKEN|TOKEN|SECRET.*|AUTHORIZATION", re.IGNORECASE)
# Names that only sound like secrets: a switch, and what tokenizers call their own.
_HARMLESS = re.compile(
    r"HF_HUB_DISABLE_IMPLICIT_TOKEN"
    r"|(?:.*_)?(?:BOS|EOS|PAD|UNK|CLS|SEP|MASK|BEGIN|START|END|STOP|THINK|IMAGE|VIDEO|AUDIO|SPECIAL|TOOL)_TOKEN",
    re.IGNORECASE,
)
# A name and its value, as vLLM's own log, Python's repr, JSON, YAML and a command line have them. Only a name with one
# of these words in it is looked at closer.
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]{0,60}?(?:token|secret|passw|api_?-?key|authorization)[\w-]{0,30})"
    r"(?P<between>['\"]?\s{0,3}[=:]\s{0,3}|(?<=[\w-])\s{1,3}(?=\S))"
    r"(?!\(not shown\))(?P<value>\[[^\]]*\]?|\"[^\"]*\"?|'[^']*'?|(?:(?:Bearer|Basic)\s)?[^\s,;&)}\]]+)",
    re.IGNORECASE,
)
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|(?:sk|nvapi|glpat|xox[abp])-[A-Za-z0-9_-]{16,}"  # OpenAI and those who copied it, NVIDIA, GitLab, Slack
    r"|(?:gh[opsu]|github_pat)_[A-Za-z0-9_]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"  # AWS
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"  # a JSON web token
    r"|(?<=Bearer )[\w.~+/=-]{8,}"
    r")"
)
_IN_URL = re.compile(r"(?<=://)[^\s/@:'\"]{0,200}:[^\s/@'\"]{1,200}(?=@)")


def is_secret(name: str) -> bool:
    """Whether what has that name, as a variable, a flag or a key, is a secret."""
    name = name.strip("-").replace("-", "_").rpartition(".")[2]
    return _HARMLESS.fullmatch(name) is None and _SECRET.fullmatch(name) is not None


def redact(text: str) -> str:
    """The text with every secret in it masked. Takes time linear in the text, which may be hostile."""
    return _SHAPES.sub(MASK, _IN_URL.sub(MASK, _NAMED.sub(_masked, text)))


def _masked(found: re.Match[str]) -> str:
    name, between = found["name"], found["between"]
    on_a_command_line = not between.strip("'\" \t") and "--" in name
    told = is_secret(name) and (on_a_command_line or "=" in between or ":" in between)
    return f"{name}{between}{MASK}" if told else found[0]


def printable(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would act on."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
