"""Writes the sbatch script of a run. Pure: reads no file, starts nothing.

sbatch reads each #SBATCH line with rules of its own, which differ from the shell's; bash reads only the last lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.core.machines import SECRET
from prime_train.toml.did_you_mean import nearest

OUTPUT = "job-%j.log"  # Slurm replaces %j by the number of the job

_KEY = re.compile(r"[a-z][a-z0-9-]*")
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # a line of the script would end there
_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:,[A-Za-z_][A-Za-z0-9_]*)*")

# Names of variables that a run reads. Slurm sets CUDA_VISIBLE_DEVICES itself, and TMPDIR differs from node to node.
_EXPORTED = frozenset(
    (
        *("HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "NO_PROXY", "PATH"),
        *("PYTHONPATH", "REQUESTS_CA_BUNDLE", "SHELL", "SSL_CERT_FILE", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME"),
        *("XDG_CONFIG_HOME", "https_proxy", "http_proxy", "no_proxy"),
    )
)
_EXPORTED_PREFIXES = ("HF_", "NCCL_", "OMP_", "PRIME_TRAIN_", "PYTORCH_", "TORCH_", "VLLM_", "WANDB_")
# Marks of the processes of another run; and each start of a job makes a secret of its own, which Slurm does not keep.
_NOT_EXPORTED = frozenset(("PRIME_TRAIN_RUN", "PRIME_TRAIN_SUPERVISOR", SECRET))

# Keys that --sbatch may not set, and why.
_OWN: Mapping[str, str] = {
    "array": "each task of an array would be a second supervisor of the same run",
    "chdir": "the job starts where this command was started, because paths of the config are relative to that folder",
    "error": "the output of the job is kept in the run directory",
    "input": "the job reads no input",
    "nodes": "parallel.machines of the config sets it",
    "no-requeue": "the job requeues itself at its time limit; --time-limit sets how long it runs",
    "ntasks": "the one task of a node is the supervisor of the run there",
    "open-mode": "the output is appended to, because a requeued job has the same file",
    "output": "the output of the job is kept in the run directory",
    "requeue": "it is set already",
    "signal": "the job saves when it gets the signal; prime_train.stop_grace_s sets how early that is",
    "wrap": "the script is written by prime-train",
}
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_HAVE_OPTIONS = {"time": "--time-limit", "partition": "--partition", "account": "--account"}


@dataclass(frozen=True, slots=True)
class Resources:
    """What one job asks of Slurm, for each of its nodes.

    None: the default of the partition. `notice_s`: seconds from the signal to the time limit.
    """

    gpus: int
    cpus: int
    memory_mib: int | None
    limit_minutes: int | None
    notice_s: int
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class SlurmScript:
    """One job.

    `folder`: where its output and its records are; `argv`: the program of the job, with arguments. `exported`: names of
    environment variables. `extra`: more options of sbatch; the value "" is a flag.
    """

    name: str
    directory: Path
    folder: Path
    argv: tuple[str, ...]
    resources: Resources
    exported: tuple[str, ...]
    partition: str | None = None
    account: str | None = None
    extra: tuple[tuple[str, str], ...] = ()


def write_script(job: SlurmScript) -> str:
    """The text of the script. Raises UserError if sbatch cannot read one of its values."""
    lines = [f"#SBATCH {_directive(key, value)}" for key, value in _options(job).items()]
    return "\n".join(
        (
            "#!/bin/bash",
            "# Written by `prime-train run --slurm`. Near its time limit the job saves and requeues itself.",
            *lines,
            "",
            "# exec: Slurm signals this process, which passes the signal on to the run and then decides what follows.",
            f"exec {shlex.join(_checked(word, 'the command') for word in job.argv)}",
            "",
        )
    )


def _options(job: SlurmScript) -> dict[str, str]:
    """The options of sbatch in the order of the script. Those in `extra` replace others of the same key."""
    needs = job.resources
    options = {
        "job-name": re.sub(r"[^A-Za-z0-9._-]+", "-", job.name) or "run",
        "chdir": str(job.directory),
        "output": _file_pattern(job.folder),
        "open-mode": "append",
        "nodes": str(needs.nodes),
        "ntasks": str(needs.nodes),
        **({"ntasks-per-node": "1"} if needs.nodes > 1 else {}),
        "cpus-per-task": str(needs.cpus),
    }
    if needs.gpus:
        options["gres"] = f"gpu:{needs.gpus}"
    if needs.memory_mib is not None:
        options["mem"] = f"{needs.memory_mib}M"
    if needs.limit_minutes is not None:
        options["time"] = format_limit(needs.limit_minutes)
    options |= {"signal": f"B:TERM@{needs.notice_s}", "requeue": "", "export": ",".join(job.exported) or "NONE"}
    for key, value in (("partition", job.partition), ("account", job.account)):
        if value:
            options[key] = value
    if any(key in _MEMORY for key, _ in job.extra):
        options.pop("mem", None)  # sbatch refuses two of them
    return options | dict(job.extra)


def _directive(key: str, value: str) -> str:
    """An option as sbatch reads it: in double quotes, a backslash before a quote or a backslash.

    Source: Slurm 22.05, src/sbatch/opt.c, _get_argument().
    """
    if not value:
        return f"--{key}"
    _checked(value, f"--{key}")
    if re.fullmatch(r"[A-Za-z0-9@%+=:,./_-]+", value):
        return f"--{key}={value}"
    return '--{}="{}"'.format(key, value.replace("\\", "\\\\").replace('"', '\\"'))


def _file_pattern(folder: Path) -> str:
    """The path of the output, in which Slurm replaces %j.

    A % of the folder is written twice. Source: sbatch(1), filename pattern: a backslash turns all replacements off.
    """
    if "\\" in str(folder):
        why = "Slurm then does not put the number of the job into the name of its output"
        raise UserError("its path has a backslash", str(folder), why, "set run.dir to a folder without one")
    return f"{str(folder).replace('%', '%%')}/{OUTPUT}"


def _checked(value: str, where: str) -> str:
    if _UNWRITABLE.search(value):
        what = f"{value!r} has a line break or a control character"
        raise UserError(what, where, "a line of an sbatch script ends there", "use a path or a value without one")
    return value


def parse_extra(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The values of --sbatch, KEY=VALUE or KEY. Raises UserError for a key that the job needs itself."""
    found: dict[str, str] = {}
    for text in given:
        key, _, value = text.partition("=")
        where, why, fix = f"--sbatch {text}", "", "for example: --sbatch constraint=h100, or --sbatch exclusive"
        if not _KEY.fullmatch(key):
            meant = nearest(key.strip("-").lower(), _COMMON_KEYS)
            what, why = f"{key!r} is no option of sbatch", "it takes the long name of an option, without dashes"
            fix = f"did you mean {meant}?" if meant else fix
        elif key in _HAVE_OPTIONS:
            what, why = f"{key} has an option of its own", "a second value of the same option would be ignored"
            fix = f"{_HAVE_OPTIONS[key]} {shlex.quote(value or 'VALUE')}"
        elif key in _OWN:
            what, why, fix = f"{key} cannot be changed", _OWN[key], "leave it out"
        elif key == "export" and not _NAMES.fullmatch(value):
            what, why = "export takes names of variables", "a value in the script could be a secret"
            fix = "--sbatch export=HOME,PATH,WANDB_API_KEY"
        elif key in found:
            what, why, fix = f"{key} is given twice", "sbatch uses only the last one", "leave one out"
        else:
            found[key] = _checked(value, where)
            continue
        raise UserError(what=what, where=where, why=why, fix=fix)
    return tuple(found.items())


_SIZE = re.compile(r"(?P<number>[0-9]{1,12})(?P<unit>[KMGT]?)B?", re.IGNORECASE)


def parse_mib(text: str) -> int | None:
    """MiB of a size as sbatch writes it: 64G, 2000. None for another text, and for 0, which is all memory of a node."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    exponent = "KMGT".index(found["unit"].upper() or "M")
    return int(found["number"]) * 1024**exponent // 1024 or None


_COMMON_KEYS = (
    *("constraint", "cpus-per-task", "exclude", "exclusive", "export", "gres", "mail-type", "mail-user", "mem"),
    *("nodelist", "qos", "reservation"),
)


def exported_names(environment: Iterable[str], more: Iterable[str | None] = ()) -> tuple[str, ...]:
    """The names of the variables that a job gets, out of those that are set. `more`: others that the config names."""
    wanted = _EXPORTED | {name for name in more if name}
    names = (
        name
        for name in environment
        if (name in wanted or name.startswith(_EXPORTED_PREFIXES)) and name not in _NOT_EXPORTED
    )
    return tuple(sorted(name for name in names if _NAMES.fullmatch(name)))


_LIMIT = re.compile(
    r"(?:(?P<days>[0-9]{1,4})-(?P<rest>[0-9]{1,3}(?::[0-9]{1,2}){0,2})|(?P<plain>[0-9]{1,6}(?::[0-9]{1,3}){0,2}))"
)


def parse_limit(text: str) -> int:
    """Minutes of a time limit as sbatch writes it, rounded up.

    Raises UserError. MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES,
    DAYS-HOURS:MINUTES:SECONDS. Source: sbatch(1), --time.
    """
    found = _LIMIT.fullmatch(text.strip())
    seconds = 0
    if found and found["days"] is not None:
        parts = [int(part) for part in found["rest"].split(":")] + [0, 0]
        seconds = ((int(found["days"]) * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2]
    elif found:
        parts = [int(part) for part in found["plain"].split(":")]
        weights = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(parts)]
        seconds = sum(part * weight for part, weight in zip(parts, weights, strict=True))
    if seconds <= 0:
        why = "Slurm reads minutes, H:MM:SS or D-HH:MM:SS"
        fix = "for example: --time-limit 90, --time-limit 4:00:00 or --time-limit 1-12:00:00"
        raise UserError(f"{text!r} is no time limit", f"--time-limit {text}", why, fix)
    return -(-seconds // 60)


def format_limit(minutes: int) -> str:
    """Minutes as sbatch reads them: D-HH:MM:00."""
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02}:{rest % 60:02}:00"


def describe(resources: Resources, extra: Sequence[tuple[str, str]] = ()) -> str:
    gpus = dict(extra).get("gres", f"gpu:{resources.gpus}" if resources.gpus else "no GPU")
    memory = "memory of the partition" if resources.memory_mib is None else f"{resources.memory_mib:,} MiB"
    limit = "time limit of the partition" if resources.limit_minutes is None else format_limit(resources.limit_minutes)
    nodes = "1 node," if resources.nodes == 1 else f"{resources.nodes} nodes with each"
    return f"{nodes} {gpus}, {resources.cpus} cores, {memory}, {limit}, signal {resources.notice_s} s before the end"
