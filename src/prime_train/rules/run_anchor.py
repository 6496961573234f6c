"""The field to which a finding about a whole run points, and how many GPUs a run takes. Pure."""

from __future__ import annotations

from prime_train.spec import RunSpec


def anchor(run: RunSpec) -> str:
    """The RunSpec field that sets how much of the machine a run takes, out of those that its format has."""
    if run.deployment is not None and run.deployment.train_gpu_ids is not None:
        return "deployment.train_gpu_ids"
    if run.deployment is not None and run.deployment.train_gpus is not None:
        return "deployment.train_gpus"
    if run.rollout is not None:
        return "rollout.batch_rollouts"
    if run.inference is not None:
        return "inference.model_name"
    if run.trainer is not None:
        return "trainer.model_name"
    return "parallel.processes"
