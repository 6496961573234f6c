"""Finds the config files that the arguments of `prime-train lint` name. Judges none of them."""

# ruff: noqa: PTH112, PTH113, PTH118 - Path.is_dir raises below a folder that cannot be read

from __future__ import annotations

import errno
import os

from prime_train.cli.lint.sweeps import is_sweep
from prime_train.config.foreign.values import MOST_BYTES, SUFFIXES
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import CONFIG_BYTES, OutsideError

MERGE = "+"  # between files to merge; the later one overrules the earlier
_STDIN = "-"
_SUFFIXES = (".toml", *SUFFIXES)
_NOT_SEARCHED = frozenset({"node_modules", "__pycache__", "venv"})


def group_paths(paths: list[str], unread: list[UserError] | None) -> list[tuple[str, ...]]:
    """The configs that the arguments name: `a + b` is one config of two files; folders are searched."""
    merged: list[list[str]] = []
    is_joined = False
    for path in paths:
        if path == MERGE:
            is_joined = True
        elif is_joined and merged:
            merged[-1].append(path)
            is_joined = False
        else:
            merged.append([path])
    if is_joined or paths[0] == MERGE:
        raise UserError(
            what="a + needs a file on each side",
            where=" ".join(paths),
            why="it merges the file on its right into the file on its left",
            fix="prime-train lint base.toml + overlay.toml",
        )
    groups: list[tuple[str, ...]] = []
    for group in merged:
        if len(group) == 1 and group[0] != _STDIN and os.path.isdir(group[0]):
            groups.extend((path,) for path in _search(group[0], unread))
        else:
            groups.append(tuple(group))
    return list(dict.fromkeys(groups))


def configs_among(paths: list[str]) -> list[str]:
    """The paths without files that are no config of any dialect, because a hook passes every TOML file.

    A file that cannot be read stays: checking it reports why.
    """
    return [path for path in paths if not os.path.isfile(path) or _may_be_config(_is_config(path))]


def _may_be_config(known: bool | OSError) -> bool:
    return known is not False and not isinstance(known, OutsideError)


def _search(folder: str, unread: list[UserError] | None) -> list[str]:
    """The configs under a folder. What is not a regular file is skipped; what cannot be read is appended to `unread`.

    Raises UserError if there is no config, so that an empty check does not pass as clean.
    """
    found: list[str] = []
    denied: list[UserError] = []
    special: list[UserError] = []
    for where, folders, names in os.walk(folder, onerror=lambda error: denied.append(_unread(error.filename, error))):
        if where != folder and is_run_directory(folders, names):
            folders[:] = []
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_SEARCHED)
        for path in (os.path.normpath(os.path.join(where, name)) for name in sorted(names) if name.endswith(_SUFFIXES)):
            known = _is_config(path)
            if isinstance(known, OutsideError):
                special.append(_special(path, known))
            elif isinstance(known, OSError):
                denied.append(_unread(path, known))
            elif known:
                found.append(path)
    if (denied or special) and unread is None:
        raise (denied or special)[0]
    if denied and not found:
        raise denied[0]
    if not found:
        raise UserError(
            what="the folder has no config that is known here",
            where=folder,
            why="a folder is searched for run.toml files, configs of prime-rl, and YAML, JSON and shell files that "
            "another trainer reads",
            fix="name the file, or start from a preset: prime-train lint quickstart",
        )
    if unread is not None:
        unread += [*denied, *special]
    return found


def is_run_directory(folders: list[str], names: list[str]) -> bool:
    """Whether a folder with these folders and files is a run's directory: its configs are records of what ran."""
    return "events" in folders and ("resolved.json" in names or "config.toml" in names)


def _special(path: str, error: OutsideError) -> UserError:
    skipped = outside.as_user_error(error, path, "put a regular file there, or give it another name", ExitCode.OK)
    return UserError(f"it is skipped: {skipped.what}", path, skipped.why, skipped.fix, ExitCode.OK)


def _unread(path: str, error: OSError) -> UserError:
    return UserError(
        what=f"it cannot be read: {error.strerror or error}",
        where=path,
        why="a config in it would not have been checked",
        fix=f"make it readable, or name the files to check: ls -ld {path}",
        exit_code=ExitCode.OUT_OF_REACH,
    )


def _is_config(path: str) -> bool | OSError:
    """Whether a file is a config; the error if that is not known, an OutsideError for what is no regular file."""
    from prime_train.config.detect import is_config

    is_foreign = path.endswith(SUFFIXES)
    try:
        text = outside.read_text(path, MOST_BYTES if is_foreign else CONFIG_BYTES, errors="replace")
        text = text.removeprefix("\ufeff")
        return is_sweep(text, path) or is_config(text, path)
    except OutsideError as error:
        return False if is_foreign and error.errno == errno.EFBIG else error
    except FileNotFoundError:  # a link to nothing
        return False
    except OSError as error:
        return error
