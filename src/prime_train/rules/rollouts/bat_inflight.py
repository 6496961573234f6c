"""Rollouts in flight, and sequences that the server computes at once, against the batch. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

_ENOUGH = 64  # requests that keep a server of any size busy


@rule("BAT018", Severity.WARNING)
def few_in_flight(run: RunSpec) -> Problems:
    """A good part of a batch should be in flight at once.

    the server decodes few sequences at a time, at almost the cost of many: its GPUs idle, and the trainer waits

    Source: prime-rl, orchestrator.concurrency.max_inflight (1024 by default).

    Bad (prime-rl 2026-08):
        [orchestrator]
        batch_size = 512
        [orchestrator.concurrency]
        min_inflight = 16
        initial_inflight = 16
        max_inflight = 16
    Good (prime-rl 2026-08):
        [orchestrator]
        batch_size = 512
        [orchestrator.concurrency]
        min_inflight = 16
        initial_inflight = 256
        max_inflight = 512
    """
    rollout = prime_rl_of(run).rollout
    if rollout is None or not rollout.max_inflight or not rollout.batch_rollouts:
        return
    if (rollout.group_size or 1) <= rollout.max_inflight < min(_ENOUGH, rollout.batch_rollouts // 4):
        what = f"{rollout.max_inflight} rollouts at once, and a batch has `rollout.batch_rollouts` "
        yield suggest("rollout.max_inflight", f"{what}{rollout.batch_rollouts}", rollout.batch_rollouts)


@rule("BAT019", Severity.WARNING)
def few_sequences_at_once(run: RunSpec) -> Problems:
    """The servers should compute a good part of a batch at once.

    every other request waits in the server's queue: a step takes many rounds of decoding instead of a few

    Source: vLLM, max_num_seqs.

    Bad (prime-rl 2026-08):
        [inference.vllm]
        max_num_seqs = 4
    Good (prime-rl 2026-08):
        [inference.vllm]
        max_num_seqs = 64
    """
    rollout, inference = prime_rl_of(run).rollout, run.inference
    if rollout is None or inference is None or not inference.max_sequences or not rollout.batch_rollouts:
        return
    sequences = inference.max_sequences * (inference.data_parallel or 1)
    if sequences < min(_ENOUGH, rollout.batch_rollouts // 8):
        yield Problem(
            "inference.max_sequences",
            f"{sequences} sequences at once on all servers, and a batch has `rollout.batch_rollouts` "
            f"{rollout.batch_rollouts}",
            fix="take it out: vLLM takes as many as its memory allows",
            patch={"inference.max_sequences": None},
        )
