"""Writes the part of a job's scripts that is for the command of another trainer. Pure.

The command has an environment of its own, beside that of prime-train: what the one installs cannot break the other.
Its words are in the config, which a quoted heredoc holds, so no shell reads them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from prime_train.spec.command import CommandSpec
from prime_train.toml.document import to_toml

_FOLDER = "$HOME/sky_workdir"  # where SkyPilot copies `workdir`; skypilot 0.14.1, skylet/constants.py
_ENVIRONMENT = "$HOME/command-env"
_SETUP = "$HOME/command-setup.sh"


def write_text(file: str, text: str, delimiter: str) -> list[str]:
    """The lines of a script that write `text` into a file. `file` is a word of the shell."""
    while delimiter in text.splitlines():
        delimiter += "_"
    whole = text if text.endswith("\n") else text + "\n"
    return [f"cat > {file} <<'{delimiter}'", f"{whole}{delimiter}"]


def install_command(command: CommandSpec, setup: Sequence[str], python: str) -> list[str]:
    """The lines that make the environment of the command and run its setup in the copy of its folder.

    A file holds the setup, so that an open quote in it ends there, and an error names its line.
    """
    name = command.argv[0]
    program = _in_folder(name)
    is_copied = "/" in name and not name.startswith(("/", "~"))
    return [
        # SkyPilot copies through a bucket, which keeps no mode of a file.
        *([f"[ ! -f {program} ] || chmod +x {program}"] if is_copied else []),
        f'[ -x "{_ENVIRONMENT}/bin/python" ] || uv venv --seed --python {python} "{_ENVIRONMENT}"',
        *write_text(f'"{_SETUP}"', "\n".join(setup), "PRIME_TRAIN_SETUP"),
        f'cd "{_FOLDER}"',
        f'VIRTUAL_ENV="{_ENVIRONMENT}" PATH="{_ENVIRONMENT}/bin:$PATH" bash -eo pipefail "{_SETUP}"',
    ]


def link_checkpoints(command: CommandSpec, bucket: str) -> list[str]:
    """The lines that make the folder of the checkpoints a link to `bucket`, a folder in the bucket."""
    return [
        f"folder={_in_folder(command.checkpoints.dir)}",
        # Not dirname: the shell takes line breaks at the end of what a command prints.
        f'mkdir -p "{bucket}" "${{folder%/*}}"',
        # A link would be made in a folder that was copied, and not in place of it.
        '[ -L "$folder" ] || [ ! -e "$folder" ] || mv "$folder" "$folder.copied"',
        f'ln -sfn "{bucket}" "$folder"',
    ]


def _in_folder(path: str) -> str:
    """A path in the copy of the command's folder, as one word of the shell."""
    return f'"{_FOLDER}"/{shlex.quote(path)}'


def command_options(command: CommandSpec) -> str:
    """The options of `prime-train run` that replace what is of another machine in the config of a command."""
    saves = shlex.quote(f"command.checkpoints.dir={to_toml(command.checkpoints.dir)}")
    return (
        f' --set command.cwd="{_FOLDER}" --set command.python="{_ENVIRONMENT}/bin/python"'
        f" --set {saves} --set command.processes={command.processes}"
    )
