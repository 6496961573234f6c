"""Writes the workflow that watches a run into a user's repository. Replaces nothing unasked."""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path

import typer

from prime_train.cli.terminal.output import write_file
from prime_train.core import installation, outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import shipped_workflow
from prime_train.core.outside import CONFIG_BYTES

_WORKFLOW = "training-monitor.yml"
_NEXT = """next
  gh variable set PRIME_TRAIN_CONFIG --body run.toml
  gh variable set PRIME_TRAIN_WANDB --body ENTITY/PROJECT/ID
  gh variable set PRIME_TRAIN_BUCKET --body NAME
  gh secret set WANDB_API_KEY
  gh secret set SKYPILOT_API_SERVER_ENDPOINT
  then commit the file, and try it: gh workflow run training-monitor -f dry_run=true"""


def write_workflow(directory: Path, *, force: bool, dry_run: bool) -> None:
    """Write the workflow into the repository that contains `directory`. Raises UserError if another file is there."""
    path = _find_root(directory) / ".github" / "workflows" / _WORKFLOW
    wanted = Path(shipped_workflow(_WORKFLOW)).read_text(encoding="utf-8")
    found = _read(path)
    if found == wanted:
        typer.echo(f"{path} is up to date")
        return
    typer.echo(_diff(path, found or "", wanted), nl=False)
    if dry_run:
        return
    if found is not None and not force:
        raise UserError(
            what="it differs from the workflow of this version",
            where=str(path),
            why="your changes would be lost",
            fix="compare the lines above, then --force",
            exit_code=ExitCode.FINDINGS,
        )
    write_file(path, wanted, makes_folders=True)
    typer.echo(f"{'replaced' if found is not None else 'written'}: {path}\n\n{_NEXT}{_name_package()}", err=True)


def _name_package() -> str:
    """The step that names the prime-train to install: without an address that is pinned, the workflow stops."""
    address = installation.package_url() or "git+https://HOST/REPOSITORY@COMMIT"
    why = "the prime-train that the workflow installs, by an address with a commit or a hash"
    return f"\n  {why}:\n  gh variable set PRIME_TRAIN_SPOT_PACKAGE --body {shlex.quote(address)}"


def _find_root(directory: Path) -> Path:
    """The top of the git repository that contains `directory`. Raises UserError if there is none."""
    start = directory.expanduser().resolve()
    for folder in (start, *start.parents):
        if (folder / ".git").exists():  # a file in a linked working tree
            return folder
    raise UserError(
        what="no git repository",
        where=str(start),
        why="GitHub runs the workflows of a repository",
        fix="git init, or --directory with a folder of a repository",
    )


def _read(path: Path) -> str | None:
    """The text of the file; None if it does not exist. Raises UserError for a link or what cannot be read."""
    if path.is_symlink():
        raise _unusable(path, "it is a symbolic link")
    try:
        return outside.read_text(path, CONFIG_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, f"it cannot be read: {error}") from None


def _unusable(path: Path, what: str) -> UserError:
    why = "GitHub reads workflows from regular files in this folder"
    return UserError(what, str(path), why, "make it a file that you may write")


def _diff(path: Path, before: str, after: str) -> str:
    names = (str(path) if before else "/dev/null", str(path))
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")
    return "".join(f"{line}\n" for line in lines)
