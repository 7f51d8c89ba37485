"""`python -m vllm_supervisor.simulator serve MODEL ...`, to be run by a wrapper named `vllm`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vllm_supervisor.simulator import processes, wording
from vllm_supervisor.simulator.flags import UsageError, parse, version
from vllm_supervisor.simulator.frontend import Frontend
from vllm_supervisor.simulator.generations import generation
from vllm_supervisor.simulator.settings import SettingsError, from_environment

_COMMANDS = "chat,complete,serve,launch,bench,collect-env,run-batch"
_USAGE = {
    "": f"usage: vllm [-h] [-v]\n            {{{_COMMANDS}}} ...\n",
    "serve": "usage: vllm serve [model_tag] [options]\n",
}


def main(words: Sequence[str], environ: dict[str, str]) -> int:
    """Run one command line; the exit code."""
    try:
        settings = from_environment(environ)
    except SettingsError as error:
        sys.stderr.write(f"simulator: {error}\n")
        return 78
    if words[:1] in (["-v"], ["--version"]):
        print(settings.vllm_version)
        return 0
    if words[:1] != ["serve"]:
        return _refuse(f"error: argument subparser: invalid choice: {words[0]!r}" if words else "error: no command")
    try:
        line = parse(words[1:], version(settings.vllm_version))
    except UsageError as error:
        return _refuse(str(error))
    processes.name_main()
    known = generation(settings.vllm_version)
    return Frontend(line, settings, known, wording.load(known.release)).run()


def _refuse(error: str) -> int:
    """Print what argparse prints, the usage of the subcommand where the error is its own; its exit code."""
    usage = _USAGE["serve" if error.startswith("serve: ") else ""]
    sys.stderr.write(f"{usage}vllm{' ' if error.startswith('serve: ') else ': '}{error}\n")
    return 2


if __name__ == "__main__":
    import os

    sys.exit(main(sys.argv[1:], dict(os.environ)))
