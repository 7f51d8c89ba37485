"""The memory of one card, in bytes, from an empty card to the sampler's warm-up.

The budget is utilization x capacity. The KV cache gets what weights, profiled peak and (in releases that estimate
them) CUDA graphs leave of it. After that, free is what lies outside the budget, less what others use there. The blocks
the profiled peak left in torch's cache count as unusable: they are fragments.

The sampler then allocates its buffers one after the other, each sequences x vocabulary x so many bytes; the first that
does not fit is the one the error names. The logits themselves are not among them: vLLM computes them before the code
that turns the error into a sentence.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20
GIB = 1 << 30

_BLOCK_TOKENS = 16  # tokens in a block of the KV cache, vLLM's default on CUDA
_LARGEST_GRAPH = 512  # sequences; vLLM captures up to min(2 x max_num_seqs, 512)
_ROUNDING = 2 * MIB  # torch's caching allocator rounds requests of 10 MiB and more up to this


class Card(NamedTuple):
    """What one rank puts on its card; bytes, but for the vocabulary (entries) and `buffers` (bytes per entry)."""

    capacity: int
    weights: int
    activation: int
    graphs: int
    outside: int
    kv_per_token: int
    vocabulary: int
    buffers: tuple[float, ...]


class Layout(NamedTuple):
    """How the card is divided once the KV cache is sized; bytes, but for `sequences` (in the warm-up's batch)."""

    card: Card
    budget: int
    peak: int
    graphs: int
    kv_cache: int
    free: int
    sequences: int

    @property
    def kv_tokens(self) -> int:
        """Tokens the KV cache holds, in whole blocks."""
        blocks = max(self.kv_cache, 0) // (self.card.kv_per_token * _BLOCK_TOKENS)
        return blocks * _BLOCK_TOKENS


class Shortage(NamedTuple):
    """An allocation that does not fit: which buffer (counted from 0), and bytes asked, free, and live by then."""

    buffer: int
    asked: int
    free: int
    live: int


def lay_out(
    card: Card, *, utilization: float, max_num_seqs: int, sequences: int, counts_graphs: bool, profiles_sampler: bool
) -> Layout:
    """Divide the card.

    Args:
        card: what is put on it.
        utilization: `--gpu-memory-utilization`, a share of the capacity.
        max_num_seqs: decides how large the captured graphs are.
        sequences: the batch of the sampler's warm-up.
        counts_graphs: whether the release takes the graphs out of the budget before it sizes the KV cache.
        profiles_sampler: whether the profiled peak includes the sampler's buffers.
    """
    graphs = card.graphs * min(2 * max_num_seqs, _LARGEST_GRAPH) // _LARGEST_GRAPH
    sampler = sum(_buffer(card, sequences, per_entry) for per_entry in card.buffers)
    peak = max(card.activation, sampler if profiles_sampler else 0)
    budget = int(card.capacity * utilization)
    kv_cache = budget - card.weights - peak - (graphs if counts_graphs else 0)
    free = max(card.capacity - budget - card.outside - (0 if counts_graphs else graphs), 0)
    return Layout(card, budget, peak, graphs, kv_cache, free, sequences)


def first_shortage(layout: Layout) -> Shortage | None:
    """The first buffer of the sampler that does not fit into what is free, or None."""
    live = 0
    for index, per_entry in enumerate(layout.card.buffers):
        asked = _buffer(layout.card, layout.sequences, per_entry)
        if live + asked > layout.free:
            return Shortage(index, asked, layout.free - live, live)
        live += asked
    return None


def warm_up_batch(runner: str, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Sequences in the warm-up's batch, as each model runner counts them."""
    return min(max_num_seqs, max_num_batched_tokens // 2 if runner == "v2" else max_num_batched_tokens)


def size(amount: int) -> str:
    """An amount as torch's allocator prints it: `512 bytes`, `1.50 KiB`, `781.50 MiB`, `79.25 GiB`."""
    if amount < 1 << 10:
        return f"{amount} bytes"
    for unit, divisor in (("KiB", 1 << 10), ("MiB", MIB)):
        if amount < divisor << 10:
            return f"{amount / divisor:.2f} {unit}"
    return f"{amount / GIB:.2f} GiB"


def out_of_memory(layout: Layout, shortage: Shortage, *, gpu: int) -> str:
    """Torch's sentence for a shortage; its numbers add up to the capacity of the card."""
    card = layout.card
    in_use = card.capacity - shortage.free
    allocated = in_use - layout.peak - card.outside
    return (
        f"CUDA out of memory. Tried to allocate {size(shortage.asked)}. GPU {gpu} has a total capacity of "
        f"{size(card.capacity)} of which {size(shortage.free)} is free. Including non-PyTorch memory, this process has "
        f"{size(in_use)} memory in use. Of the allocated memory {size(allocated)} is allocated by PyTorch, with "
        f"{size(layout.graphs)} allocated in private pools (e.g., CUDA Graphs), and {size(layout.peak)} is reserved by "
        "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-"
        "alloc-conf)"
    )


def _buffer(card: Card, sequences: int, per_entry: float) -> int:
    exact = int(sequences * card.vocabulary * per_entry)
    return exact if exact < 10 * MIB else -(-exact // _ROUNDING) * _ROUNDING
