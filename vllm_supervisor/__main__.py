"""`python -m vllm_supervisor` is the program."""

import sys

from vllm_supervisor.cli import main

sys.exit(main())
