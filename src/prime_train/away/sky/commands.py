"""Runs the installed `sky`: launches, lists, shows and cancels managed jobs. Secrets go by name only."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.away.sky.queue import ManagedJob, parse_queue
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machine_secret import MAKE
from prime_train.core.machines import SECRET
from prime_train.core.redaction import own_secrets, redact
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import NoAnswer, ProbeOutput, run_probe
from prime_train.registry.gpus import read_table
from prime_train.toml.did_you_mean import nearest
from prime_train.views.run.logs import Printable

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
    why = f"the clouds are {', '.join(known)}"
    raise UserError(f"no cloud is called {wanted!r}", f"--cloud {wanted}", why, f"--cloud {meant or AUTO}")


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


_VERSION = re.compile(r"version (\d+)\.(\d+)\.(\d+)")
_WANTED = (0, 14)
_QUICK_S = 120.0  # the first command starts SkyPilot's API server
_LAUNCH_S = 1800.0  # uploads, and the controller's own machine
_NO_LOGIN = re.compile(
    r"no cloud access|no public cloud is enabled|no infra to check|all clouds are disabled|credentials?[^\n]{0,80}"
    r"(?:not (?:set|found|valid)|expired|missing)",
    re.IGNORECASE,
)
QUEUE = ["jobs", "queue", "--all", "--all-users", "--output", "json"]
INSTALL = "pip install 'skypilot[aws]>=0.14,<0.15'; sky check"


class Sky(NamedTuple):
    """The installed `sky`, and the environment in which it runs."""

    program: str
    environment: Mapping[str, str]


class Unreachable(Exception):
    """`sky` is missing, has another version, or has no credentials. Its text is the reason."""


def find_sky(environment: Mapping[str, str]) -> Sky:
    """The `sky` on the search path. Raises Unreachable if there is none, or none of version 0.14."""
    program = shutil.which("sky", path=environment.get("PATH"))
    if program is None:
        raise Unreachable("`sky` is not installed")
    sky = Sky(program, environment)
    answer = _run(sky, ["--version"], _QUICK_S)
    found = _VERSION.search(f"{answer.out}\n{answer.err}")
    version = tuple(int(part) for part in found.groups()) if found is not None else ()
    if version[:2] != _WANTED:
        named = ".".join(map(str, version)) or "an unknown version"
        raise Unreachable(f"{program} is {named}, and the job is written for {'.'.join(map(str, _WANTED))}")
    return sky


def list_jobs(sky: Sky) -> tuple[ManagedJob, ...]:
    """The managed jobs, the newest first. Raises Unreachable without credentials, UserError if `sky` fails."""
    return parse_queue(_command(sky, QUEUE, _QUICK_S).out)


def launch(sky: Sky, name: str, file: Path, secret_names: tuple[str, ...]) -> None:
    """Submit a job, and return when it is queued. Raises Unreachable without credentials, UserError if it fails."""
    _command(sky, [*launch_arguments(name, file, secret_names), "-d", "-y"], _LAUNCH_S)


def launch_arguments(name: str, file: Path, secret_names: tuple[str, ...]) -> list[str]:
    """The arguments of `sky` that submit a job. A secret is named; `sky` reads its value from the environment."""
    named = [word for secret in secret_names for word in ("--secret", secret)]
    return ["jobs", "launch", "-n", name, *named, str(file)]


def show_launch(name: str, file: Path, secret_names: tuple[str, ...]) -> str:
    """The line of a shell that submits a job. It makes the secret of several machines, which no file has."""
    made = f"{SECRET}=$({MAKE}) " if SECRET in secret_names else ""
    return made + shlex.join(["sky", *launch_arguments(name, file, secret_names)])


def read_log(sky: Sky, job_id: int) -> str:
    """The output of a job so far; "" if there is none yet. Raises UserError if `sky` does not answer in time."""
    answer = _run(sky, ["jobs", "logs", "--no-follow", str(job_id)], _QUICK_S)
    return answer.out if answer.code == 0 else ""


def show_log(sky: Sky, job_id: int, write: Callable[[str], None], *, follow: bool) -> int:
    """Write the output of a job, with secrets masked. Returns the exit code of `sky`."""
    words = ["jobs", "logs", "--follow" if follow else "--no-follow", str(job_id)]
    printable = Printable(own_secrets(environment=sky.environment))
    with subprocess.Popen(
        [sky.program, *words], env=dict(sky.environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert isinstance(process.stdout, BufferedReader)
        while chunk := process.stdout.read1():
            write(printable.feed(chunk))
        write(printable.flush())
    return process.returncode


def cancel(sky: Sky, job_id: int) -> None:
    """Cancel a job. Raises Unreachable without credentials, UserError if `sky` fails."""
    _command(sky, ["jobs", "cancel", "-y", str(job_id)], _QUICK_S)


def _command(sky: Sky, words: list[str], limit_s: float) -> ProbeOutput:
    """One call of `sky` that must succeed. Raises Unreachable without credentials, UserError if it fails."""
    answer = _run(sky, words, limit_s)
    if answer.code != 0:
        raise _failure(sky, f"sky {' '.join(words[:2])}", answer)
    return answer


def _run(sky: Sky, words: list[str], limit_s: float) -> ProbeOutput:
    """One call of `sky`, in a session of its own, because Ctrl-C must not end a submission half-way.

    Raises UserError after `limit_s`; then its processes are ended.
    """
    limit_s = float(sky.environment.get("PRIME_TRAIN_SKY_LIMIT_S", limit_s))
    answer = run_probe([sky.program, *words], limit_s, environment=sky.environment)
    if isinstance(answer, NoAnswer):
        why = "SkyPilot's API server is busy or hangs; a submission may have arrived all the same"
        fix = "sky api info; sky jobs queue; then the same command again, which never submits a job twice"
        raise UserError(answer.reason, f"sky {' '.join(words[:2])}", why, fix, ExitCode.OUT_OF_REACH)
    if isinstance(answer, NotKnown):
        raise Unreachable(answer.reason)
    return answer


def _failure(sky: Sky, command: str, answer: ProbeOutput) -> UserError | Unreachable:
    text = redact(f"{answer.out}\n{answer.err}", own_secrets(environment=sky.environment))
    if _NO_LOGIN.search(text):
        return Unreachable("SkyPilot has no credentials for a cloud")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    what = f"it failed with exit code {answer.code}"
    why = " | ".join(lines[-3:])[:600] or "it printed nothing"
    return UserError(what, command, why, "sky check; sky api info", ExitCode.OUT_OF_REACH)
