"""`python -m tests.sandbox [COMMAND ...]`: a shell, or one command, in a fresh sandbox."""

from __future__ import annotations

import sys

from tests.sandbox import Sandbox, SandboxError


def main(argv: list[str]) -> int:
    """Run `argv` or a shell; return its exit code."""
    with Sandbox() as box:
        print(f"sandbox: running after {box.boot_s:.2f} s; gone when this ends", file=sys.stderr)
        # A terminal of the sandbox's own, or the shell has no job control: the host's is not seen in its PID namespace.
        shell = ["script", "--quiet", "--command", "exec bash -i", "/dev/null"]
        return box.popen(argv or shell, stdin=None).wait()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SandboxError as error:
        sys.exit(str(error))
