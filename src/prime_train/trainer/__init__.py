"""The bundled torch trainer. Launched as a process of its own; nothing imports it.

All kinds of training share the model, the optimizer, the step, which gets the loss as an argument, the checkpointer and
the adapters. With `[model.lora]` checkpoints hold the adapters alone; exports and the weights for an engine are merged.
When an attempt resumes, lines of metrics.jsonl beyond the checkpoint are removed, so each step has one line. On several
machines without a shared disk the ranks send their checkpoint files to machine 0, so a checkpoint looks like one from a
single machine, and the number of machines may change. The trainer has no fp8 experts and no fp8 gathers, no expert
parallelism (FSDP2 shards the experts and every process computes all of them), and no Muon for stacked experts.
docs/gpu.md lists what was never measured on a GPU.
"""
