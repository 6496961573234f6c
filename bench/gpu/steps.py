"""The steps of both parts, in order, and the time that each may take. Standard library only."""

from __future__ import annotations

from typing import NamedTuple

PART_S = {"A": 540.0, "B": 230.0}  # with the installation of the wheels; both and two starts fit into fifteen minutes
OUT_OF_REACH = 4  # the exit code without a GPU; prime_train.core.errors.ExitCode
TINY_LIMIT_S = 600.0  # of each step on a CPU, which may be busy


class Step(NamedTuple):
    """`share_s` is reserved for the step. It may take longer, up to `limit_s`, in time that earlier steps left."""

    name: str
    part: str
    share_s: float
    limit_s: float
    module: str  # has `measure(bench)`
    wheels: tuple[str, ...] = ("base",)  # the groups in wheels.WHEELS that it imports


STEPS = (
    Step("env", "A", 12, 30, "gpu.environment", ()),
    Step("varlen", "A", 25, 60, "gpu.varlen"),
    Step("kernels", "A", 55, 90, "gpu.kernels"),
    Step("speed-124m", "A", 90, 140, "gpu.speed"),
    Step("gaps", "A", 45, 80, "gpu.gaps"),
    Step("speed-1b", "A", 110, 150, "gpu.speed"),
    Step("speed-350m", "A", 90, 130, "gpu.speed"),
    Step("fsdp1", "A", 25, 45, "gpu.fsdp1"),
    Step("moe", "A", 13, 40, "gpu.moe"),
    Step("ablation", "A", 60, 120, "gpu.ablation"),
    Step("run", "B", 70, 100, "gpu.resume", ("base", "train")),
    Step("rl", "B", 45, 80, "gpu.rollouts", ("base", "train")),
    Step("memory", "B", 60, 110, "gpu.memory"),
    Step("fp8", "B", 40, 60, "gpu.fp8", ("base", "fp8")),
)


def find_limit(step: Step, later: tuple[Step, ...], left_s: float) -> float:
    """The seconds that a step may take of those that its part has left, without the shares of `later` steps."""
    return min(step.limit_s, left_s - sum(one.share_s for one in later))
