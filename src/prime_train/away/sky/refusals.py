"""Refuses what cannot run as a spot job, with the reason and the alternatives. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.away.sky.commands import AUTO, Cloud, list_ids
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.named_secrets import find_named
from prime_train.core.redaction import redact
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import machine_gpus, policy_of, prime_rl_of, program_name, trains, traits_of

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LOCAL_START = ("/", "~", "./", "../", "file://")
_TEXTS = frozenset({"prompts", "system_prompt", "pattern", "command", "setup"})  # keys of texts, not of paths
_DEEPEST = 64


class LocalPath(NamedTuple):
    """A value of the config that names a file or folder of this machine, with its dotted key."""

    key: str
    value: str


def local_paths(value: Any, key: str = "", depth: int = 0) -> Iterator[LocalPath]:
    """Every value of a config that is a path of this machine."""
    if depth > _DEEPEST:
        return
    if isinstance(value, str):
        if value.startswith(_LOCAL_START):
            yield LocalPath(key, value)
    elif isinstance(value, Mapping):
        if value.get("kind") == "files" and isinstance(value.get("path"), str):
            yield LocalPath(f"{key}.path", value["path"])
            return
        for name, item in value.items():
            if name not in _TEXTS:
                yield from local_paths(item, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from local_paths(item, key, depth + 1)


def list_downloads(run: RunSpec) -> tuple[str, ...]:
    """Names on the Hugging Face hub that the bundled trainer reads as folders, so that a job must download them."""
    if run.prime_rl is not None:
        return ()
    named = (run.model.path, run.tokenizer.path)
    return tuple(dict.fromkeys(name for name in named if name is not None and _HUB_NAME.fullmatch(name)))


def list_unreachable(run: RunSpec) -> tuple[LocalPath, ...]:
    """Folders of a run.toml that are neither absolute nor names on the hub."""
    if run.prime_rl is not None:
        return ()
    named = (("model.path", run.model.path), ("tokenizer.path", run.tokenizer.path))
    return tuple(LocalPath(key, name) for key, name in named if name is not None and not _HUB_NAME.fullmatch(name))


def needs_containers(run: RunSpec) -> bool:
    """Whether an environment of the run starts containers."""
    sources = prime_rl_of(run).environments
    every = (*(sources.train or ()), *(sources.evaluate or ())) if sources is not None else ()
    return any(source.runtime == "docker" for source in every)


MACHINE_GPUS = 8  # of the largest machine that clouds commonly offer
_PACKAGE = re.compile(r"(git\+)?https://[\w.-]+(:\d+)?(/[\w.%+~-]+)+(@[\w./-]+)?(#sha256=[0-9a-f]{64})?", re.ASCII)
_LONGEST_CONFIG = 100_000  # characters; the script with it must fit into the arguments of a shell


def refuse_run(run: RunSpec, config: str, wanted_cloud: str) -> None:
    """Raise UserError for a run that no cloud can run as a spot job. `config`: its path, for the message."""
    if run.prime_train.spot.setup:
        why = "the job of any other run installs what its program needs, and has no copy of a folder"
        raise _error(config, "prime_train.spot.setup is for the command of another trainer", why, "take it out")
    if not trains(run):
        why = "a spot job has an end, and its requests would be lost with the machine"
        raise _error(config, "it serves a model, and trains nothing", why, "sky serve up, or a config that trains")
    if run.run.max_steps >= ENDLESS_STEPS:
        why = "SkyPilot would pay for machines without an end"
        raise _error(config, "it sets no max_steps", why, f"set {traits_of(run).max_steps_key}")
    # prime-train copies a prime-rl file without ckpt.interval and sets it.
    if run.checkpoint.interval_steps is None and run.prime_rl is None:
        why = "a spot machine is taken away without warning, and the next one would begin at step 0"
        raise _error(config, "it saves no checkpoint before its end", why, "set checkpoint.interval_steps")
    gpus, machines = machine_gpus(run), run.parallel.machines
    if gpus is None or gpus > machines * MACHINE_GPUS:
        raise _too_many_gpus_error(run, config, wanted_cloud)


def _too_many_gpus_error(run: RunSpec, config: str, wanted_cloud: str) -> UserError:
    gpus, machines = machine_gpus(run), run.parallel.machines
    count = "several machines" if gpus is None else f"{gpus} GPUs"
    fix = f"a layout for {MACHINE_GPUS} GPUs: prime-train find {config} --spot --gpus-max {MACHINE_GPUS}"
    if program_name(run) == "bundled" and gpus is not None and policy_of(run) is None and run.inference is None:
        joined = ", ".join(list_ids(spot=True, bucket_mount=True, multi_node=True))
        fix = f"parallel.machines = {-(-gpus // MACHINE_GPUS)}, on a cloud that joins spot machines: {joined}; or {fix}"
        fix += "" if wanted_cloud == AUTO else f", not only on {wanted_cloud}"
        why = "all processes are on one machine" if machines == 1 else "each machine has an equal part of the processes"
    elif program_name(run) == "prime_rl":
        why = "prime-rl starts processes on other machines through Slurm alone, and a spot job has none"
    else:
        why = "its engine and its environments are on loopback beside rank 0, and answer no other machine"
    most = f"{machines} machines have" if machines > 1 else "a machine has"
    return _error(config, f"it needs {count}, and {most} at most {machines * MACHINE_GPUS}", why, fix)


def find_paths(run: RunSpec, values: Mapping[str, Any]) -> tuple[LocalPath, ...]:
    """Every local path in a config, each once."""
    return tuple(dict.fromkeys((*local_paths(values), *list_unreachable(run))))


def refuse_config(text: str, hidden: Iterable[str], config: str) -> None:
    """Raise UserError for a config text that no job may contain. `hidden`: secrets in the environment."""
    if redact(text, hidden) != text:
        why = "the config is a part of the job's file, and anyone who reads that file would have the secret"
        raise _error(config, "it holds a secret", why, "take it out, revoke it, and pass it through the environment")
    if len(text) > _LONGEST_CONFIG:
        why = f"the config is a part of the job's script, and at most {_LONGEST_CONFIG:,} fit"
        fix = "shorten it: prompts and lists of files are usually the longest part"
        raise _error(config, f"it has {len(text):,} characters", why, fix)


def refuse_setup(setup: Iterable[str], config: str) -> None:
    """Raise UserError for a setup that gives a secret its value."""
    name = next(find_named("\n".join(setup)), None)
    if name is not None:
        why = "the setup is a part of the job's file, and anyone who reads that file would have the secret"
        fix = "take it out, revoke it, and fetch it there: from a store of secrets, or as $HF_TOKEN or $WANDB_API_KEY"
        raise _error(f"{config}: prime_train.spot.setup", f"it holds the secret of {redact(name)}", why, fix)


def refuse_paths(found: tuple[LocalPath, ...], config: str) -> None:
    """Raise UserError for local paths that no file_mounts carry to the job."""
    if found:
        raise _local_path_error(found, config)


def _local_path_error(found: tuple[LocalPath, ...], config: str) -> UserError:
    first = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    why = "the job runs on another machine, which has none of these files, and there is nothing here to copy"
    fix = (
        "a file or folder that exists here, which the job's file_mounts then copy; or a name on the Hugging Face hub: "
        "upload with `hf upload`, and name it OWNER/NAME"
    )
    return _error(f"{first.key} in {config}", f"{first.value!r} is a path of this machine{more}", why, fix)


def refuse_package(url: str) -> None:
    """Raise UserError for an address of the package that a machine of a cloud cannot use, or that has a login."""
    if not _PACKAGE.fullmatch(url):
        why = "each machine of the job installs it, without a file or a login of this machine"
        fix = "--package git+https://HOST/REPOSITORY@COMMIT, or https://HOST/prime_train-VERSION-py3-none-any.whl"
        raise UserError(f"{redact(url)!r} is not the public address of a package", "--package", why, fix)


def usable_clouds(run: RunSpec, clouds: tuple[Cloud, ...], wanted: str, *, has_backup: bool) -> tuple[Cloud, ...]:
    """The clouds on which the run can be a spot job.

    Raises UserError if there is none. `has_backup`: the run's own backup carries its checkpoints, so no bucket needs to
    be mounted.
    """
    spot = tuple(cloud for cloud in clouds if cloud.spot)
    if not spot:
        why = "--spot rents machines that the cloud may take back for a lower price"
        fix = f"--cloud {AUTO}, or one of {', '.join(list_ids(spot=True))}"
        raise _cloud_error(wanted, f"{clouds[0].title} has no spot machines", why, fix)
    kept = tuple(cloud for cloud in spot if cloud.bucket_mount or has_backup)
    if not kept:
        raise _cloud_error(
            wanted,
            f"SkyPilot mounts no bucket on {spot[0].title}, and the config has no backup",
            "the checkpoints are lost with the machine",
            "provider and bucket in [prime_train.backup], which carries them from inside the run; or "
            f"--cloud {AUTO}, or one of {', '.join(list_ids(spot=True, bucket_mount=True))}",
        )
    if run.parallel.machines > 1:
        kept = tuple(cloud for cloud in kept if cloud.multi_node)
        if not kept:
            raise _cloud_error(
                wanted,
                f"it cannot join {run.parallel.machines} machines",
                "the machines of a run exchange gradients in every step",
                f"--cloud {AUTO}, or one of {', '.join(list_ids(spot=True, multi_node=True))}; "
                "or parallel.machines = 1 with the processes of one machine",
            )
    if needs_containers(run):
        kept = tuple(cloud for cloud in kept if cloud.docker and not cloud.container)
        if not kept:
            what = "its environments start containers, and the machines of this cloud cannot"
            fix = 'runtime type = "subprocess" for the environments, or --cloud aws, azure, gcp or nebius'
            raise _cloud_error(wanted, what, "no Docker daemon runs there", fix)
    return kept


def keep_reachable(clouds: tuple[Cloud, ...], provider: str | None, wanted: str) -> tuple[Cloud, ...]:
    """The clouds on which a job reaches the storage of the run's backup. Raises UserError if there is none.

    Google's storage knows a machine of Google Cloud by its account, and any other by a file of credentials, which a
    job gets no secret for.
    """
    if provider != "gcs":
        return clouds
    kept = tuple(cloud for cloud in clouds if cloud.id == "gcp")
    if not kept:
        what = "the backup is in Google's storage, which machines of this cloud cannot reach"
        why = "its credentials are a file of this machine, and a job gets secrets by name only"
        raise _cloud_error(wanted, what, why, "--cloud gcp, or a backup whose provider is s3, b2, azure or hf")
    return kept


def no_candidate_error(left_out: tuple[tuple[str, int], ...], wanted: str, gpus: int, config: str) -> UserError:
    """The error if the run fits on no machine of these clouds. `config`: "" for a command, which has no estimate."""
    reasons = "; ".join(f"{why} ({count})" for why, count in left_out[:3])
    what = f"no spot machine with {gpus} GPU{'s' if gpus > 1 else ''} is suitable"
    why = reasons or f"SkyPilot's catalogue has no {'GPU of registry/gpus.toml' if config else 'such GPU'} on {wanted}"
    finds = f"prime-train find {config} --spot lists what fits, and why others do not" if config else "other --gpus"
    fix = f"--cloud {AUTO}; {finds}"
    return UserError(what, f"--cloud {wanted}", why, fix, ExitCode.FINDINGS)


def _error(where: str, what: str, why: str, fix: str) -> UserError:
    return UserError(what=what, where=where, why=why, fix=fix, exit_code=ExitCode.FINDINGS)


def _cloud_error(wanted: str, what: str, why: str, fix: str) -> UserError:
    return UserError(what=what, where=f"--cloud {wanted}", why=why, fix=fix)
