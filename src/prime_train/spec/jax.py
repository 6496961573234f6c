"""The settings in a Python script that starts jax.distributed. Values only.

Only literal values are known: None means computed or not set; `given` has the names of both kinds that are set.
The classes are named tuples, because each lint creates them at its start, and a dataclass takes seven times longer.
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
    given: tuple[str, ...] = ()  # the fields above that the call passes, including computed ones
    passes_more: bool | None = None  # by *arguments or **arguments, which cannot be read
    numbered_by: str | None = None  # the variable from which a computed process_id is read


class Jax(NamedTuple):
    """The JAX settings of a script. A value None in a mapping is computed."""

    starts: tuple[JaxStart, ...] = ()
    config: Mapping[str, object] | None = None  # jax.config.update(name, value)
    environment: Mapping[str, str | None] | None = None  # os.environ[name] = value
    environment_is_known: bool | None = None  # False if a variable's name is computed
    set_after_import: tuple[str, ...] = ()  # variables that are set after `import jax`
    answers_preemption: bool | None = None  # it checks for the notice, or handles SIGTERM itself

    @property
    def variables(self) -> Mapping[str, str | None]:
        return self.environment or {}
