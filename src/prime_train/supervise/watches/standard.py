"""The watches that a config asks for."""

from __future__ import annotations

import os

from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise.launch.program import Program
from prime_train.supervise.policy import Policy
from prime_train.supervise.watches.disk.watch import DiskWatch
from prime_train.supervise.watches.gpu.watch import GpuWatch
from prime_train.supervise.watches.hang.hang_alert import SilenceWatch
from prime_train.supervise.watches.host.watch import HostWatch
from prime_train.supervise.watches.watch import Watch, Watches


def standard(run: RunSpec, run_dir: RunDir, program: Program, policy: Policy) -> Watches:
    """One watch of each kind that is not off, and those of the program."""
    asked = run.prime_train.watch
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    others: list[Watch] = [*program.watches(run, run_dir)]
    if asked.hang == "alert":
        others.append(SilenceWatch(policy))
    if asked.host != "off":
        others.append(HostWatch(run_dir))
    return Watches(
        gpu=GpuWatch(run_dir, answer=asked.gpu, visible=visible) if asked.gpu != "off" else None,
        disk=DiskWatch(run, run_dir, program.places(run, run_dir), program.keep(run), answer=asked.disk)
        if asked.disk != "off"
        else None,
        others=tuple(others),
    )
