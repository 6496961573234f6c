"""Writes the setup and run scripts of a cloud job. Pure; every value from outside is quoted for the shell."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from prime_train import __version__
from prime_train.away.sky.job_end import ELSEWHERE
from prime_train.away.sky.refusals import list_downloads
from prime_train.config.prime_rl.schema import load
from prime_train.core.errors import ExitCode
from prime_train.spec import RunSpec
from prime_train.spec.answers import launched_server, prime_rl_of, program_name

BUCKET_VARIABLE = "PRIME_TRAIN_BUCKET"  # the folder of the bucket on the machine
NAME_VARIABLE = "PRIME_TRAIN_JOB"
BUCKET_FOLDER = "/prime-train-bucket"
CONFIG = "run.toml"
_FOLDER = '"$HOME/prime-train-job"'
_BIN = "$HOME/prime-train-env/bin"
_UV = "0.9.30"  # PyPI, 2026-11: its installer is kept for each version
_PYTHON = "3.12"
_VLLM = "0.32.0"  # the version whose arguments are in registry/vllm_arguments.json
_PRIME_RL = "https://github.com/PrimeIntellect-ai/prime-rl"
_COMMIT = re.compile(r"\bprime-rl ([0-9a-f]{7,40})\b")
_DELIMITER = "PRIME_TRAIN_CONFIG"


class InstalledPackage(NamedTuple):
    """What a machine installs of this package: extras besides the usual ones, and an address instead of the index."""

    extras: tuple[str, ...] = ()
    url: str | None = None


THIS_VERSION = InstalledPackage()


class Script(NamedTuple):
    """The scripts of a task. `setup` runs on each new machine, `run` after it."""

    setup: str
    run: str


def write_script(
    run: RunSpec, config: str, secrets: tuple[str, ...], package: InstalledPackage = THIS_VERSION, *, mounts: bool
) -> Script:
    """The scripts for a run whose final config text is `config`.

    The config is part of the script, so that a recovery on another machine uses the same text, without a copy in a
    bucket of its own or a file on the submitting machine. `mounts`: the bucket is a folder of the machine.
    """
    return Script(_setup(run, secrets, package), _run(run, config, mounts=mounts))


def _setup(run: RunSpec, secrets: tuple[str, ...], package: InstalledPackage) -> str:
    # Secrets come before anything is installed, because the machine costs money from here on.
    lines = ["set -euo pipefail", *map(_require_secret, secrets)]
    lines += [
        f'curl -LsSf https://astral.sh/uv/{_UV}/install.sh | env UV_INSTALL_DIR="$HOME/.local/bin" sh',
        'export PATH="$HOME/.local/bin:$PATH"',
    ]
    lines += _install_prime_rl(run, package) if program_name(run) == "prime_rl" else _install_bundled(run, package)
    downloads = list_downloads(run)
    if downloads:
        lines += [f"mkdir -p {_FOLDER}", f"cd {_FOLDER}"]
        lines += [f'"{_BIN}/hf" download {shlex.quote(name)} --local-dir {shlex.quote(name)}' for name in downloads]
    return "\n".join(lines) + "\n"


def _require_secret(name: str) -> str:
    text = f"error: the secret {name} is not set: sky jobs launch --secret {name}"
    return f'[ -n "${{{name}:-}}" ] || {{ echo "{text}" >&2; exit {ExitCode.OUT_OF_REACH:d}; }}'


def _require(run: RunSpec, package: InstalledPackage, *extras: str) -> str:
    wanted = (*extras, *package.extras, *(("wandb",) if run.prime_train.wandb.project is not None else ()))
    named = f"[{','.join(wanted)}]" if wanted else ""
    return shlex.quote(f"prime-train{named}" + (f" @ {package.url}" if package.url else f"=={__version__}"))


def _install_bundled(run: RunSpec, package: InstalledPackage) -> list[str]:
    vllm = [f"vllm=={_VLLM}"] if launched_server(run) is not None else []
    packages = " ".join([_require(run, package, "train"), *vllm])
    return [
        f'[ -x "{_BIN}/python" ] || uv venv --python {_PYTHON} "$HOME/prime-train-env"',
        f'uv pip install --python "{_BIN}/python" {packages}',
    ]


def _install_prime_rl(run: RunSpec, package: InstalledPackage) -> list[str]:
    """prime-rl at the commit from which the table of the config's generation was read, with its own lock file."""
    generation = prime_rl_of(run).launch.generation
    commit = _COMMIT.search(load(generation).source) if generation is not None else None
    revision = commit[1] if commit is not None else "main"
    return [
        f'[ -d "$HOME/prime-rl/.git" ] || git clone --filter=blob:none {_PRIME_RL} "$HOME/prime-rl"',
        f'git -C "$HOME/prime-rl" checkout --quiet {revision}',
        '(cd "$HOME/prime-rl" && uv sync --locked --all-extras)',
        f'uv pip install --python "$HOME/prime-rl/.venv/bin/python" {_require(run, package)}',
        'ln -sfn "$HOME/prime-rl/.venv" "$HOME/prime-train-env"',
    ]


def _run(run: RunSpec, config: str, *, mounts: bool) -> str:
    delimiter = _DELIMITER
    while delimiter in config.splitlines():
        delimiter += "_"
    text = config if config.endswith("\n") else config + "\n"
    lines = ["set -euo pipefail", f'export PATH="{_BIN}:$PATH"', f"mkdir -p {_FOLDER}", f"cd {_FOLDER}"]
    if mounts:  # what the run writes is in the bucket; the code, caches and models are on the machine's disk
        opened = [f'mkdir -p "${BUCKET_VARIABLE}/runs"', f'ln -sfn "${BUCKET_VARIABLE}/runs" runs']
        # A mark of another host protects its checkpoint for ever, and that host is gone.
        opened += [f'find "${BUCKET_VARIABLE}" -name "IN_USE.*" -type f -delete']
        # Other machines send their parts of a checkpoint to machine 0, and write nothing that outlives them.
        only_0 = run.parallel.machines > 1
        lines += [_ON_MACHINE_0, *opened, "fi"] if only_0 else opened
    lines += [f"cat > {CONFIG} <<'{delimiter}'", f"{text}{delimiter}"]
    words = f'prime-train run {CONFIG} --resume auto --run-name "${NAME_VARIABLE}"'
    if run.prime_rl is None:
        words += " --set run.dir=runs"
    elif mounts:  # an absolute path that is the same on each machine, because prime-rl's state has it
        words += f' --set output_dir="${BUCKET_VARIABLE}/outputs"'
    return "\n".join(lines) + "\n" + _SUPERVISED.format(command=words, folder=f'"runs/${NAME_VARIABLE}"')


_ON_MACHINE_0 = 'if [ "${SKYPILOT_NODE_RANK:-0}" = 0 ]; then'

# bash hands on a signal only if it waits for a background child; `wait` returns early then, so it is repeated.
_SUPERVISED = f"""{{command}} &
child=$!
trap 'kill -TERM "$child" 2> /dev/null || true' TERM INT
code=0
wait "$child" || code=$?
while kill -0 "$child" 2> /dev/null; do code=0; wait "$child" || code=$?; done
# {ELSEWHERE}: the hardware failed, and another machine continues the run.
exec python -P -m prime_train.away.sky.job_end {{folder}} "$code"
"""
