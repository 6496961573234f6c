"""The settings of a run that recommendations change. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, policy_of


class Setup(NamedTuple):
    """None where a setting is not known or does not exist. `kv_tokens`: the tokens that the engine's cache holds."""

    micro_batch: int | None = None
    global_batch: int | None = None  # sequences, or rollouts, of a step
    ctx_tokens: int | None = None
    processes: int | None = None
    loader_workers: int | None = None
    checkpoint_interval_steps: int | None = None
    async_save: bool | None = None
    concurrency: int | None = None
    max_behind_steps: int | None = None
    cores: int | None = None
    kv_tokens: int | None = None
    gpus: int = 0  # of this machine
    load: float | None = None  # threads that wanted to run on this machine, in the last minute
    machine_cores: int | None = None
    throttled_s: float = 0.0  # for which the limit of the control group stopped the run

    @property
    def kv_sequences(self) -> int | None:
        """Sequences of full length that the cache holds."""
        if self.kv_tokens is None or not self.ctx_tokens:
            return None
        return max(1, self.kv_tokens // self.ctx_tokens)

    def kv_share(self, sequences: float) -> float | None:
        """The share of the cache that so many sequences of full length use."""
        if self.kv_tokens is None or not self.ctx_tokens:
            return None
        return min(1.0, sequences * self.ctx_tokens / self.kv_tokens)


def setup_of(run: RunSpec, cores: int | None = None, kv_tokens: int | None = None, gpus: int = 0) -> Setup:
    """The setup of a run.toml."""
    policy = policy_of(run)
    return Setup(
        micro_batch=run.batch.micro_batch,
        global_batch=global_batch(run),
        ctx_tokens=run.data.ctx_tokens,
        processes=run.parallel.processes,
        loader_workers=run.data.planned_workers if policy is None else None,
        checkpoint_interval_steps=run.checkpoint.interval_steps,
        async_save=run.checkpoint.async_save,
        concurrency=None if policy is None else policy.concurrency,
        max_behind_steps=None if policy is None else policy.max_behind_steps,
        cores=cores,
        kv_tokens=kv_tokens,
        gpus=gpus,
    )
