"""What the bundled trainer needs in its environment. Pure."""

from __future__ import annotations

from prime_train.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise.launch.environment import (
    ALLOCATOR,
    Host,
    Needs,
    flight_recorder,
    gpu_order,
    loopback,
    python,
)
from prime_train.supervise.launch.launch import Variable

_NO_SHARED_STORE = Variable(
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", "torchrun's store listens everywhere; rank 0 has its own"
)


def needs(run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
    """The needs of the trainer's processes, which share the cores of this machine."""
    processes = run.parallel.processes
    threads = str(max(1, host.cores // processes))
    reason = "less memory is lost to fragments of segments"
    several = (*loopback(), _NO_SHARED_STORE, *flight_recorder(run_dir, attempt)) if processes > 1 else ()
    return Needs(
        (
            *python(),
            Variable("OMP_NUM_THREADS", threads, f"{host.cores} cores over {processes} processes"),
            gpu_order(),
            *(Variable(name, "expandable_segments:True", reason) for name in ALLOCATOR),
            *several,
        )
    )
