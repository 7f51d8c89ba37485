"""The options that a vLLM says its `serve` takes, and the arguments of a service held against them. Pure.

Only what argparse refuses for certain is found fault with: an option it does not know, a value too many or too few, a
text that is not among the choices. What a value means is for vLLM to judge.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_supervisor.config import Complaint, Service
from vllm_supervisor.units.argv import argument_words

_OPTION = re.compile(r"--?[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_CHOICE = re.compile(r"[\x21-\x7e]{1,100}")
_ALWAYS = frozenset({"--host", "--max-num-seqs", "--port"})  # we pass them; a vLLM without them is none
_SHOWN = 12  # choices that a hint lists

# Values that argparse takes by its `nargs`, at least and at most.
_NARGS: Mapping[object, tuple[int, int | None]] = {None: (1, 1), "?": (0, 1), "*": (0, None), "+": (1, None)}


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        least: how many values it takes at least; 0 for a switch.
        most: how many at most; None for any number.
        choices: the only values there are; () where vLLM does not say.
    """

    least: int
    most: int | None
    choices: tuple[str, ...] = ()


def read_options(answer: object) -> dict[str, Option]:
    """What a vLLM answered, by option such as `--max-model-len`.

    Args:
        answer: a mapping of options to mappings with `nargs` and `choices` as argparse has them, as read from JSON.
            Whoever may write to vLLM's files may have written it.

    Raises:
        ValueError: it is nothing of that kind, or too little to be whole.
    """
    if not isinstance(answer, dict) or not answer.keys() >= _ALWAYS:
        raise ValueError("the answer is not a list of vLLM's options")
    return {name: _option(said) for name, said in answer.items() if _OPTION.fullmatch(name)}


def _option(said: object) -> Option:
    if not isinstance(said, dict):
        raise ValueError("the answer holds an option that is not described")
    nargs, choices = said.get("nargs"), said.get("choices")
    known = isinstance(nargs, str | None)
    least, most = (nargs, nargs) if isinstance(nargs, int) else _NARGS.get(nargs, (0, None)) if known else (0, None)
    texts = choices if isinstance(choices, list) else []
    sound = all(isinstance(text, str) and _CHOICE.fullmatch(text) for text in texts)
    return Option(least, most, tuple(texts) if sound else ())


def complaints(service: Service, options: Mapping[str, Option], version: str | None) -> Iterator[Complaint]:
    """What this vLLM would refuse of a service's arguments, by argument.

    Args:
        service: its `arguments` are looked at.
        options: what its vLLM takes.
        version: of its vLLM, for the message; None if it is not known.
    """
    vllm = f"vLLM {version}" if version else "this vLLM"
    for flag, value in service.arguments.items():
        found = (_refusal(flag, words, options, vllm) for words in argument_words(flag, value))
        if fault := next(filter(None, found), None):
            yield Complaint(service, ("arguments", flag), *fault)


def _refusal(flag: str, words: Sequence[str], options: Mapping[str, Option], vllm: str) -> tuple[str, str] | None:
    """Why vLLM refuses these words of a flag, and what to do; None if it takes them, as far as can be told."""
    word, assigned, value = words[0].partition("=")
    values = [value] if assigned else words[1:]
    name = word.partition(".")[0]
    option = options.get(name)
    if option is None:
        return _unknown(flag, name, options, vllm)
    if option.most == 0 and values:
        return f"a switch in {vllm}", "write true or false"
    if not values and option.least:
        return f"{vllm} wants a value for it", f"write `{flag}: VALUE`"
    if len(values) < option.least or (option.most is not None and len(values) > option.most):
        return f"{vllm} takes {'one value' if option.most == 1 else f'{option.most} values'} for it", ""
    wrong = [text for text in values if text not in option.choices] if option.choices else []
    return (f"{vllm} does not know `{wrong[0]}` here", _choose(wrong[0], option.choices)) if wrong else None


def _unknown(flag: str, name: str, options: Mapping[str, Option], vllm: str) -> tuple[str, str]:
    if name != f"--{flag.partition('.')[0]}" and (positive := options.get(f"--{flag}")):  # it was set to false
        hint = f"write `{flag}: VALUE`, or leave it out" if positive.least else "leave it out"
        return f"{vllm} has no way to switch it off", hint
    known = sorted({key[2:] for key in options if key.startswith("--") and not key.startswith("--no-")})
    wanted, dot, rest = flag.partition(".")
    longer = [key for key in known if key.startswith(wanted)]  # vLLM would take it for that one, until it has two such
    close = longer if len(longer) == 1 else difflib.get_close_matches(wanted, known, n=1, cutoff=0.7)
    hint = f"did you mean `{close[0]}{dot}{rest}`?" if close else "`vllm serve --help=all` lists those it has"
    return f"{vllm} has no such flag", hint


def _choose(text: str, choices: Sequence[str]) -> str:
    if close := difflib.get_close_matches(text, choices, n=1, cutoff=0.6):
        return f"did you mean `{close[0]}`?"
    shown = ", ".join(choices[:_SHOWN]) + (", …" if len(choices) > _SHOWN else "")
    return f"it is one of {shown}"
