"""What each cloud can do, and the names that SkyPilot has for GPUs. Reads the shipped tables; judges nothing."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from prime_train.core.errors import UserError
from prime_train.registry.gpus import read_table
from prime_train.toml.did_you_mean import nearest

AUTO = "auto"


class Cloud(NamedTuple):
    """One cloud. `id` is SkyPilot's name of it.

    `container`: its machines are containers, so a job cannot start containers. `store`: the kind of its own buckets, ""
    if it has none. `notice_s`: the time between the notice and the end of a spot machine; None = no notice documented.
    """

    id: str
    title: str
    spot: bool
    bucket_mount: bool
    multi_node: bool
    docker: bool
    container: bool = False
    store: str = ""
    notice_s: float | None = None
    notice: str = ""


class Accelerator(NamedTuple):
    """SkyPilot's `name` of the registry's `gpu`, on `clouds`."""

    name: str
    gpu: str
    clouds: tuple[str, ...]


@cache
def clouds() -> dict[str, Cloud]:
    """Every cloud of registry/clouds.toml by its id."""
    return {entry["id"]: Cloud(**entry) for entry in read_table("clouds.toml")["cloud"]}


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Every accelerator of registry/accelerators.toml."""
    entries: list[dict[str, Any]] = read_table("accelerators.toml")["accelerator"]
    return tuple(Accelerator(entry["name"], entry["gpu"], tuple(entry["clouds"])) for entry in entries)


def list_clouds(wanted: str) -> tuple[Cloud, ...]:
    """The cloud of that name, or every cloud for "auto". Raises UserError for an unknown name."""
    known = clouds()
    if wanted == AUTO:
        return tuple(known.values())
    if wanted in known:
        return (known[wanted],)
    meant = nearest(wanted, (*known, AUTO))
    raise UserError(
        what=f"no cloud is called {wanted!r}",
        where=f"--cloud {wanted}",
        why=f"the clouds are {', '.join(known)}",
        fix=f"--cloud {meant or AUTO}",
    )


def list_ids(*, spot: bool = False, bucket_mount: bool = False, multi_node: bool = False) -> tuple[str, ...]:
    """Ids of the clouds that have all of the requested features, and GPUs that a job can ask for."""
    with_gpus = {cloud for accelerator in accelerators() for cloud in accelerator.clouds}
    return tuple(
        cloud.id
        for cloud in clouds().values()
        if cloud.id in with_gpus
        and (cloud.spot or not spot)
        and (cloud.bucket_mount or not bucket_mount)
        and (cloud.multi_node or not multi_node)
    )
