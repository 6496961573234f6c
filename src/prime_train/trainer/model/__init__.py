"""The model: blocks, attention, experts, adapters, and its names in files.

The pieces of packed rows are planned once per micro-batch, on the CPU. A micro-batch in which only the first document
of each row has labels needs no plan, because a causal mask already protects that document. On a GPU in bf16 all pieces
are one call of FlashAttention with their ends (`torch.nn.attention.varlen`). In fp32 each piece is a causal call of its
own, short pieces share a call with a small mask, and a dense mask of T x T is used only below 512 positions: on a CPU
3.07 times as fast as a dense mask at 2048 positions, 8.49 times at 8192 (`bench/attention.py`). Torch 2.11 has no flag
for keys and values with fewer heads than queries; there a process compares one small call with repeated heads before
its first plan, and repeats them where the kernel does not share. FlexAttention is not used: each mask of ours is causal
within pieces, which FlashAttention takes as it is, without a compiler. Only rollouts with a shared prompt repeat keys.

On a GPU the loss of a large vocabulary is computed in chunks, with its gradients in the forward; on a CPU chunks are
slower. The log-probabilities of rollouts compute a chunk again in the backward, because the gradient of a token depends
on its value. `model.pad_vocab` adds rows that no token has: they stay 0, no export has them, and the head multiplies
them because that is faster. The bias that balances a sigmoid router is saved with the weights. Logits and gradients of
each family differ by at most 2.9e-6 from those of transformers (test_families.py, which allows 1e-5).

Changes to a model have the order fp8, recompute, compile, shards. fp8 changes the class of a layer and no name, so its
key may change between attempts. A layer whose sizes are no multiples of 16 stays in bf16, as do head, embedding,
routers, stacked experts and the gathers of FSDP2. Recompute wraps torch's checkpoint in a function of its own, because
torch.compile skips a block whose first frame is torch's. A sharded model starts on the meta device, with its adapters,
and each process fills its own rows.
"""
