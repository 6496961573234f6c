"""Environment variables that a file sets for the processes of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.spec import RunSpec

_WIRED = ("CUDA_VISIBLE_DEVICES", "WANDB_RUN_ID", "WANDB_SHARED_MODE", "WANDB_SHARED_LABEL")
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_NO_PROXY = ("no_proxy", "NO_PROXY")
_PARTS = ("env_vars", "trainer_env_vars", "orchestrator_env_vars", "inference_env_vars")


@rule("VAR001", Severity.WARNING)
def variable_overridden(run: RunSpec) -> Iterator[Problem]:
    """Variables that prime-rl sets itself have no effect in a file.

    the launcher's own wiring of GPUs and of the shared W&B run comes last

    Source: prime-rl's launcher (os.environ < defaults < env_vars < WANDB and CUDA wiring).

    Bad (prime-rl 2026-08):
        [env_vars]
        CUDA_VISIBLE_DEVICES = "0,1"
    Good (prime-rl 2026-08):
        [env_vars]
        NCCL_DEBUG = "WARN"
    """
    for at, name, value in _variables(run):
        if name in _WIRED:
            yield Problem(
                at,
                f"{name} = {value} is overridden by the launcher",
                fix=f"take it out, and export {name} before the launch",
                patch={at: None},
                safe=True,
            )


@rule("VAR002", Severity.WARNING)
def proxy_before_local_services(run: RunSpec) -> Iterator[Problem]:
    """A proxy needs no_proxy for the services of the run itself.

    the orchestrator asks inference on localhost: through the proxy it reaches another machine, or none

    Source: curl and Python's urllib, http_proxy and no_proxy.

    Bad (prime-rl 2026-08):
        [env_vars]
        http_proxy = "http://proxy.example.org:3128"
    Good (prime-rl 2026-08):
        [env_vars]
        http_proxy = "http://proxy.example.org:3128"
        no_proxy = "localhost,127.0.0.1"
    """
    variables = list(_variables(run))
    if any(name in _NO_PROXY for _, name, _ in variables):
        return
    for at, name, _ in variables:
        if name in _PROXIES:
            yield Problem(at, f"{name} without no_proxy", fix='no_proxy = "localhost,127.0.0.1" beside it')


@rule("VAR003", Severity.WARNING)
def every_kernel_waited_for(run: RunSpec) -> Iterator[Problem]:
    """CUDA_LAUNCH_BLOCKING is for finding a fault, not for training.

    the host waits for every kernel: nothing overlaps, and a step takes several times as long

    Source: NVIDIA, CUDA C++ programming guide, environment variables.

    Bad (prime-rl 2026-08):
        [trainer.env_vars]
        CUDA_LAUNCH_BLOCKING = "1"
    Good (prime-rl 2026-08):
        [trainer.env_vars]
        CUDA_LAUNCH_BLOCKING = "0"
    """
    for at, name, value in _variables(run):
        if name == "CUDA_LAUNCH_BLOCKING" and value not in ("", "0"):
            yield Problem(at, f"{name} = {value}", fix="take it out", patch={at: None})


@rule("VAR004", Severity.WARNING)
def segments_expand_in_inference(run: RunSpec) -> Iterator[Problem]:
    """Inference should not use expandable segments.

    vLLM maps its memory by itself when weights are exchanged: prime-rl switches them off there for that reason

    Source: prime-rl's launcher (expandable_segments:True for the trainer, False for inference).

    Bad (prime-rl 2026-08):
        [inference.env_vars]
        PYTORCH_CUDA_ALLOC_CONF = "expandable_segments:True"
    Good (prime-rl 2026-08):
        [trainer.env_vars]
        PYTORCH_CUDA_ALLOC_CONF = "expandable_segments:True"
    """
    for at, name, value in _variables(run):
        expands = name == "PYTORCH_CUDA_ALLOC_CONF" and "expandable_segments:true" in value.lower()
        if expands and at.startswith("launch.inference_env_vars"):
            yield Problem(at, f"{name} = {value}", fix="take it out", patch={at: None})


def _variables(run: RunSpec) -> Iterator[tuple[str, str, str]]:
    """(RunSpec field, variable, value) of every variable the file sets."""
    if run.launch is None:
        return
    for part in _PARTS:
        for name, value in (getattr(run.launch, part) or {}).items():
            yield f"launch.{part}.{name}", name, str(value)
