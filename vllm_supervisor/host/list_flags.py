"""Runs inside a vLLM's own Python, as `python -c TEXT EXECUTABLE`: prints the options of its `serve` as JSON.

EXECUTABLE is run as `EXECUTABLE serve MODEL --...` up to the moment when its parser, complete, begins to parse. Nothing
here knows where in vLLM that parser is made, which changes every few releases. The option it is run with is one that no
parser has: a vLLM that this does not stop refuses it and ends. `--help` would not do, since releases after 0.32 answer
it from a parser that has few of the options.

Nothing but the standard library of Python 3.9, the oldest that a vLLM since 0.8 runs on.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from typing import Any

_NO_OPTION = "--supervisor-asks-for-the-options"
_parse_known_args: Any = argparse.ArgumentParser.parse_known_args


def main(executable: str) -> None:
    """Print `{"--max-model-len": {"nargs": null, "choices": null}, ...}` and end the process; `nargs` is argparse's."""
    answer = os.dup(1)
    os.dup2(2, 1)  # vLLM logs to standard output while it is imported

    def parse_known_args(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction) and "serve" in action.choices:
                os.write(answer, json.dumps(_options(action.choices["serve"])).encode())
                os._exit(0)  # neither threads nor exit handlers of what was imported have a say
        return _parse_known_args(parser, *args, **kwargs)

    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign, assignment]
    sys.argv = [executable, "serve", "model", _NO_OPTION]
    sys.path[0] = os.path.dirname(os.path.realpath(executable))  # noqa: PTH120 - as Python does for a script
    runpy.run_path(executable, run_name="__main__")


def _options(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    return {
        option: {"nargs": action.nargs, "choices": _choices(action)}
        for action in parser._actions
        for option in action.option_strings
    }


def _choices(action: argparse.Action) -> list[str] | None:
    """Texts that are compared as they were given; None where anything goes, or where they are converted first."""
    if action.choices is None or action.type not in (None, str):
        return None
    choices = list(action.choices)
    return choices if all(isinstance(choice, str) for choice in choices) else None


if __name__ == "__main__":
    main(sys.argv[1])
