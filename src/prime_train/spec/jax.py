"""What a Python script says of the distributed run that it starts. Values only.

Only what stands in it literally is known: None is "computed, or not said", and `given` tells the two apart.
Named tuples, not dataclasses: a lint makes these classes at each start, at a seventh of the cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class JaxStart(NamedTuple):
    """One call of jax.distributed.initialize. Source: JAX 0.10.2, jax/_src/distributed.py."""

    coordinator_address: str | None = None  # "host:port" of process 0
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: tuple[int, ...] | None = None
    cluster_detection_method: str | None = None  # "slurm", "ompi", "mpi4py", "deactivate", ...
    initialization_timeout_s: int | None = None
    heartbeat_timeout_s: int | None = None
    given: tuple[str, ...] = ()  # the fields above that the call passes, computed ones too
    passes_more: bool | None = None  # by *arguments or **arguments that cannot be seen


class Jax(NamedTuple):
    """What a script sets for JAX. A value None in a mapping is computed."""

    starts: tuple[JaxStart, ...] = ()
    config: Mapping[str, object] | None = None  # jax.config.update(name, value)
    environment: Mapping[str, str | None] | None = None  # os.environ[name] = value
    environment_is_known: bool | None = None  # False where a name is computed too
    set_after_import: tuple[str, ...] = ()  # variables that are set below `import jax`
    answers_preemption: bool | None = None  # it asks for the notice, or has a word on SIGTERM itself

    @property
    def variables(self) -> Mapping[str, str | None]:
        return self.environment or {}
