"""The watches that a config asks for."""

from __future__ import annotations

import os

from prime_train.backends import vllm
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise.policy import Policy
from prime_train.supervise.watches.disk_watch import DiskWatch
from prime_train.supervise.watches.engine import EngineWatch
from prime_train.supervise.watches.gpu import GpuWatch
from prime_train.supervise.watches.host import HostWatch
from prime_train.supervise.watches.silence import SilenceWatch
from prime_train.supervise.watches.watch import Watch


def standard(run: RunSpec, run_dir: RunDir, policy: Policy) -> tuple[Watch, ...]:
    """One of each kind that is not off. An engine is watched where the run has a server of its own."""
    asked = run.prime_train.watch
    found: list[Watch] = []
    if asked.gpu != "off":
        found.append(GpuWatch(run_dir, answer=asked.gpu, visible=os.environ.get("CUDA_VISIBLE_DEVICES")))
    if asked.engine != "off" and run.server is not None:
        url, log = vllm.base_url(run.server), run_dir.watches / "engine.log"
        model = run.server.requests_name
        found.append(EngineWatch(url, vllm.ROLE, answer=asked.engine, model=model, log=log))
    if asked.hang == "alert":
        found.append(SilenceWatch(policy))
    if asked.disk != "off":
        found.append(DiskWatch(run, run_dir, answer=asked.disk))
    if asked.host != "off":
        found.append(HostWatch(run_dir))
    return tuple(found)
