"""The model: blocks, attention, experts, adapters, and its names in files.

The pieces of packed rows are planned once per micro-batch, on the CPU. A micro-batch in which only each row's first
document has labels needs no plan, because a causal mask already protects that document. On a GPU in bf16 all pieces are
one call of FlashAttention with their ends (`torch.nn.attention.varlen`). In fp32 each piece is one causal call, short
pieces share a call with a small mask, and a dense T x T mask is used only below 512 positions. Measured on a CPU,
pieces are 3.07 times as fast as a dense mask at 2048 positions, and 8.49 times at 8192 (`bench/attention.py`). Torch
2.11 has no flag for keys and values with fewer heads than queries; there a process compares one small call with
repeated heads before the first plan, and repeats them where the kernel does not share. FlexAttention is not used: each
mask of ours is causal within pieces, which FlashAttention takes as it is, without a compiler. Only rollouts with a
shared prompt repeat keys.

On a GPU the loss over a large vocabulary is computed in chunks, with gradients in the forward; on a CPU chunks are
slower. Log-probabilities for rollouts compute a chunk again in the backward, because a token's gradient depends on the
value. `model.pad_vocab` adds rows that no token has: they stay 0, no export has them, and the head multiplies them
because that is faster. The bias that balances a sigmoid router is saved with the weights. Logits and gradients of each
family differ by at most 2.9e-6 from those of transformers (test_families.py, which allows 1e-5).

Changes to a model have the order fp8, recompute, compile, shards. fp8 changes the class of a layer and no name, so the
key may change between attempts. A layer whose sizes are no multiples of 16 stays in bf16, as do head, embedding,
routers, stacked experts and the gathers of FSDP2. Recompute wraps torch's checkpoint in its own function, because
torch.compile skips a block whose first frame is torch's. A sharded model starts on the meta device, adapters included,
and each process fills the rows that it holds.
"""
