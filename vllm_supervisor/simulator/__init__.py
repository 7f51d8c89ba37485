"""A stand-in for the `vllm` command: the same command line, output, processes and failures, without a GPU."""
