"""The real vLLM, for CPU and without a GPU: what it prints and does, and what we make of it.

`./dev test-vllm [VERSION]` runs these tests; the rest of the suite never collects them. See docs/real-vllm.md.
"""
