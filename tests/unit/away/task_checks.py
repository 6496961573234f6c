"""Checks a SkyPilot task for faults that SkyPilot accepts and that cost money later. Pure; starts nothing.

skypilot 0.14.1 accepts a misspelt accelerator or strategy, an illegal bucket name, spot on a cloud without spot, a
bucket where none can be mounted, and a secret that is null, which it drops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.away.sky.commands import Cloud, accelerators, clouds, list_ids
from prime_train.away.sky.job_end import RECOVERED
from prime_train.away.sky.record import bucket_fault, job_fault
from prime_train.core.errors import ExitCode
from prime_train.core.redaction import is_secret, redact
from prime_train.toml.did_you_mean import nearest

_STRATEGIES = ("EAGER_NEXT_REGION", "FAILOVER")
_MOUNTS = ("MOUNT", "MOUNT_CACHED")
_FINAL = {int(code) for code in ExitCode} - set(RECOVERED)  # another machine would end the same way


class Fault(NamedTuple):
    """Where in the task ("resources.any_of[1].infra"), what, why, fix."""

    where: str
    what: str
    why: str
    fix: str


def check_task(task: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Every fault of a task document that was read from YAML or made by `task.py`."""
    return tuple(_check(task))


def _check(task: Mapping[str, Any]) -> Iterator[Fault]:
    name = task.get("name")
    if isinstance(name, str) and job_fault(name):
        yield Fault("name", repr(name), job_fault(name), "rename the run: --run-name NAME")
    resources = _table(task.get("resources"))
    nodes = task.get("num_nodes", 1)
    for where, entry in _entries(resources):
        yield from _check_entry(where, {**resources, **entry}, nodes, task)
    recovery = resources.get("job_recovery")
    yield from _check_recovery({"strategy": recovery} if isinstance(recovery, str) else _table(recovery))
    for folder, mount in _table(task.get("file_mounts")).items():
        if isinstance(mount, Mapping):
            yield from _check_bucket(f"file_mounts.{folder}", mount)
    yield from _check_secrets(task)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _entries(resources: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    for key in ("any_of", "ordered"):
        if isinstance(resources.get(key), list):
            return [(f"resources.{key}[{index}]", _table(entry)) for index, entry in enumerate(resources[key])]
    return [("resources", resources)]


def _check_entry(where: str, entry: Mapping[str, Any], nodes: Any, task: Mapping[str, Any]) -> Iterator[Fault]:
    cloud = None
    infra = entry.get("infra") or entry.get("cloud")
    if isinstance(infra, str):
        name = infra.partition("/")[0].lower()
        cloud = clouds().get({"k8s": "kubernetes"}.get(name, name))
        if cloud is None and name != "*":
            meant = nearest(name, clouds())
            yield Fault(f"{where}.infra", f"unknown cloud {name!r}", "SkyPilot cannot rent there", meant or "aws")
    yield from _check_accelerators(where, entry.get("accelerators"), cloud)
    if cloud is None:
        return
    if entry.get("use_spot") and not cloud.spot:
        fix = f"one of {', '.join(list_ids(spot=True))}"
        yield Fault(f"{where}.use_spot", f"{cloud.title} has no spot machines", "the job would wait forever", fix)
    if isinstance(nodes, int) and nodes > 1 and not cloud.multi_node:
        fix = f"num_nodes: 1, or one of {', '.join(list_ids(multi_node=True))}"
        yield Fault("num_nodes", f"{cloud.title} cannot join {nodes} machines", "each would train alone", fix)
    image = entry.get("image_id")
    if isinstance(image, str) and image.startswith("docker:") and not cloud.docker:
        yield Fault(f"{where}.image_id", f"{cloud.title} starts no container image", "the launch fails", "no image_id")
    if not cloud.bucket_mount:
        for folder, mount in _table(task.get("file_mounts")).items():
            if isinstance(mount, Mapping) and mount.get("mode", "MOUNT") in _MOUNTS:
                fix = (
                    f"[prime_train.backup] in the config, or one of {', '.join(list_ids(spot=True, bucket_mount=True))}"
                )
                why = "the folder would be an ordinary one, and lost with the machine"
                yield Fault(f"file_mounts.{folder}", f"{cloud.title} mounts no buckets", why, fix)


def _check_accelerators(where: str, wanted: Any, cloud: Cloud | None) -> Iterator[Fault]:
    names = list(wanted) if isinstance(wanted, list | Mapping) else []
    if isinstance(wanted, str):
        names = [wanted]
    known = {accelerator.name: accelerator for accelerator in accelerators()}
    for text in names:
        name = str(text).partition(":")[0]
        here = [item for item in accelerators() if item.name == name]
        if not here:
            meant = nearest(name, known)
            why = "SkyPilot takes any text, and finds no machine at launch"
            yield Fault(f"{where}.accelerators", f"unknown GPU {name!r}", why, meant or ", ".join(sorted(known)))
        elif cloud is not None and cloud.id != "kubernetes" and not any(cloud.id in item.clouds for item in here):
            fix = f"a cloud that has it: {', '.join(sorted({place for item in here for place in item.clouds}))}"
            yield Fault(f"{where}.accelerators", f"{cloud.title} has no {name}", "the launch finds no machine", fix)


def _check_recovery(recovery: Mapping[str, Any]) -> Iterator[Fault]:
    strategy = recovery.get("strategy")
    if isinstance(strategy, str) and strategy.upper() not in _STRATEGIES:
        meant = nearest(strategy.upper(), _STRATEGIES) or _STRATEGIES[0]
        yield Fault("resources.job_recovery.strategy", repr(strategy), f"one of {', '.join(_STRATEGIES)}", meant)
    given = recovery.get("recover_on_exit_codes")
    codes = given if isinstance(given, list) else [] if given is None else [given]
    wrong = sorted(code for code in codes if code in _FINAL)
    if wrong:
        why = "the next machine ends with the same code, and is paid for"
        fix = f"recover_on_exit_codes: {list(RECOVERED)}"
        yield Fault("resources.job_recovery.recover_on_exit_codes", f"{wrong} are recovered", why, fix)


def _check_bucket(where: str, mount: Mapping[str, Any]) -> Iterator[Fault]:
    name, store = mount.get("name"), str(mount.get("store", "")).lower()
    if isinstance(name, str) and (fault := bucket_fault(name, store)):
        yield Fault(f"{where}.name", repr(name), fault, "--bucket NAME")
    settings = _table(_table(mount.get("config")).get("mount_cached"))
    if settings.get("transfers", 1) != 1:
        why = "files are uploaded in another order than they were written, so a marker may arrive before its files"
        yield Fault(f"{where}.config.mount_cached.transfers", str(settings["transfers"]), why, "transfers: 1")


def _check_secrets(task: Mapping[str, Any]) -> Iterator[Fault]:
    for name, value in _table(task.get("secrets")).items():
        if value is None:
            yield Fault(f"secrets.{name}", "null", "SkyPilot drops a secret that is null", f'{name}: ""')
        elif value:
            fix = f'{name}: "" here, and --secret {name} at the launch'
            yield Fault(f"secrets.{name}", "a value", "the file is shared, and the secret with it", fix)
    for name, value in _table(task.get("envs")).items():
        if is_secret(str(name), str(value or "")):
            fix = f'{name}: "" under secrets, and --secret {name} at the launch'
            yield Fault(f"envs.{name}", "a secret", "SkyPilot shows envs in its logs and its dashboard", fix)
    for key in ("setup", "run"):
        text = task.get(key)
        if isinstance(text, str) and redact(text) != text:
            yield Fault(key, "a secret in the script", "the file is shared, and the secret with it", "a secret by name")
