"""Reads the machines of a run from the variables of SkyPilot, Slurm or this project. Pure: opens nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from prime_train.core.errors import UserError
from prime_train.core.machines import ADDRESSES, MOST_MACHINES, PORT, RANK, USUAL_PORT, Machines, read_machines

_SLURM_PORTS = range(20_000, 28_000, 2)  # two jobs may share a node, so the port depends on the number of the job


def find_machines(environment: Mapping[str, str]) -> Machines | None:
    """The machines that the variables name; None if they name one or none. Raises UserError if they contradict.

    This project's own variables come first, then those of a Slurm step, then those of SkyPilot.
    """
    for source, read in _SOURCES:
        try:
            found = read(environment)
        except (ValueError, KeyError) as error:
            raise _contradiction(source, error) from None
        if found is not None and found.count > 1:
            return found
    return None


def _read_skypilot(environment: Mapping[str, str]) -> Machines | None:
    """SkyPilot sets one address per line. Source: skypilot 0.14.1, skylet/constants.py (SKYPILOT_NODE_IPS)."""
    addresses = tuple(environment.get("SKYPILOT_NODE_IPS", "").split())
    if not addresses:
        return None
    if (number := int(environment["SKYPILOT_NUM_NODES"])) != len(addresses):
        raise ValueError(f"SKYPILOT_NUM_NODES is {number}, and SKYPILOT_NODE_IPS has {len(addresses)} addresses")
    return _machines(environment["SKYPILOT_NODE_RANK"], addresses, environment)


def _read_slurm(environment: Mapping[str, str]) -> Machines | None:
    """The nodes of a step that srun started; a batch script alone runs on one node. Source: srun(1), OUTPUT."""
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    if not nodes or "SLURM_PROCID" not in environment:
        return None
    return _machines(environment["SLURM_NODEID"], tuple(expand_nodes(nodes)), environment)


_SOURCES: tuple[tuple[str, Callable[[Mapping[str, str]], Machines | None]], ...] = (
    (ADDRESSES, read_machines),
    ("SLURM_STEP_NODELIST", _read_slurm),
    ("SKYPILOT_NODE_IPS", _read_skypilot),
)


def _machines(rank: str, addresses: tuple[str, ...], environment: Mapping[str, str]) -> Machines | None:
    job = environment.get("SLURM_JOB_ID", "")
    usual = _SLURM_PORTS[int(job) % len(_SLURM_PORTS)] if job.isdecimal() else USUAL_PORT
    own = {RANK: rank, ADDRESSES: ",".join(addresses), PORT: environment.get(PORT) or str(usual)}
    return read_machines(own)


_PART = re.compile(r"([^,\[\]]*)(?:\[([0-9,-]+)\])?([^,\[\]]*)(?:,|\Z)")


def expand_nodes(text: str) -> Iterator[str]:
    """The names in a list of Slurm: "gpu[01-03,7],login" is gpu01, gpu02, gpu03, gpu7, login. Raises ValueError.

    Source: Slurm 22.05, scontrol show hostnames.
    """
    position = count = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None or found.end() == position:
            raise ValueError(f"{text[:200]!r} is no list of nodes")
        position = found.end()
        before, numbers, after = found.groups()
        for number in [""] if numbers is None else _expand_numbers(numbers):
            count += 1
            if count > MOST_MACHINES:
                raise ValueError(f"it names more than {MOST_MACHINES} nodes")
            yield f"{before}{number}{after}"


def _expand_numbers(text: str) -> Iterator[str]:
    """ "01-03,7" is 01, 02, 03, 7: a number keeps its leading zeros."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def _contradiction(source: str, error: Exception) -> UserError:
    problem = f"{error} is not set" if isinstance(error, KeyError) else str(error)
    return UserError(
        what=f"it does not describe the machines of a run: {problem}",
        where=source,
        why="the machines of a run need the address of machine 0, and each its own number",
        fix="--machine-rank N --machine-addresses ADDRESS,ADDRESS,... on every machine, or unset the variable",
    )
