"""Held-out text, sets and benchmarks. docs/evaluation.md has the parts.

A loop knows one list of `Evaluation`s; each measures the model after a step and emits events.

All data are opened before the first step, so missing data end a run at once. Each value is one event, `Measured` (name,
metric, value, count); the fold keeps the latest 1024 and drops those after a step that was resumed from. A vLLM server
for `[[tasks]]` starts before a tokenizer is trained, with `tokenizer.vocab_size` rows: rows of no token are zeros, and
`logit_bias` keeps them out of answers, so the trained model has the same shape with and without a server. The engine
watch allows weights as old as one interval. The other ranks wait in their own gloo group (`World.wait_long`), because
an evaluation may take longer than an exchange may. A run with a server makes the same steps as one without (tested
bit-equal on a CPU).
"""
