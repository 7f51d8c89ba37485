"""A Triton backend for CPUs in name only: with TRITON_INTERPRET=1 nothing is compiled, but vLLM wants to see one."""
