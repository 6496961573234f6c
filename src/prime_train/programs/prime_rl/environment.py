"""What prime-rl's launcher needs in its environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from prime_train.rundir import RunDir
from prime_train.supervise.launch.environment import ALLOCATOR, Host, Needs, Told, flight_recorder, gpu_order, python


def needs(run_dir: RunDir, attempt: int, host: Host) -> Needs:
    """The launcher sets most variables of its parts itself."""
    sets = "prime-rl's launcher sets it for each of its parts, whatever it finds"
    shadowed = f"{ALLOCATOR[1]}, which prime-rl sets for each of its parts, is read before it"
    reasons = ((ALLOCATOR[1], sets), ("OMP_NUM_THREADS", sets), (ALLOCATOR[0], shadowed))
    given = host.given
    return Needs(
        (*python(), gpu_order(), *flight_recorder(run_dir, attempt)),
        left_out=tuple(_not_set(name, given, reason) for name, reason in reasons),
    )


def _not_set(name: str, given: Mapping[str, str], reason: str) -> Told:
    return Told("ignored", name, given[name], reason) if name in given else Told("left out", name, "", reason)
