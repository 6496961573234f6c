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


def gpus_asked(run: RunSpec) -> int | None:
    """GPUs that a prime-rl run takes on one machine; None if its file does not set them."""
    deployment = run.deployment
    if deployment is None or (deployment.kind or "single_node") != "single_node":
        return None
    infers = run.inference is not None  # without [inference] the run takes no GPU for it
    if deployment.train_gpu_ids is not None or deployment.infer_gpu_ids is not None:
        infer_ids = deployment.infer_gpu_ids if infers else ()
        return max((*(deployment.train_gpu_ids or ()), *(infer_ids or ())), default=-1) + 1
    return (deployment.train_gpus or 0) + (deployment.infer_gpus or 0 if infers else 0) or None
