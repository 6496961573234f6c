"""The work of `prime-train lint`: finds the files, judges them and renders the verdicts. Prints nothing.

It is apart from lint.py because cli/entry.py runs it without typer, whose import takes longer than a lint.
"""

# ruff: noqa: PTH112, PTH113, PTH118 - Path.is_dir raises below a folder that cannot be read

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import CONFIG_BYTES, OutsideError
from prime_train.rules.judge import Verdict, lint, lint_merged

if TYPE_CHECKING:
    from prime_train.cli.lint.fix import Repaired

_MERGE = "+"  # between files to merge; the later one overrules the earlier
_STDIN = "-"
_NOT_SEARCHED = frozenset({"node_modules", "__pycache__", "venv"})


class Repair(NamedTuple):
    """The options of `lint --fix` and `--diff`: `unsafe` adds the fixes that change the run."""

    write: bool
    unsafe: bool = False

    @property
    def option(self) -> str:
        return "--fix" if self.write else "--diff"


def check(
    paths: list[str],
    wanted: tuple[str, ...] = (),
    unwanted: tuple[str, ...] = (),
    output_format: str = "full",
    repair: Repair | None = None,
    *,
    prime_rl: str | None = None,
    unread: list[UserError] | None = None,
    strict: bool = False,
) -> tuple[str, bool]:
    """(text to print, whether no finding is at error level, or at warning level if `strict`).

    Raises UserError if a file cannot be read.

    `wanted` and `unwanted` are codes or prefixes of codes; an empty `wanted` means all. With `repair.write` the files
    are fixed and the findings are those that remain; else the findings are those of the files as they are.
    `prime_rl` is the generation of prime-rl files that name none. With `unread`, the errors of what cannot be read in
    a searched folder are appended to it, and the other files are checked.
    """
    from prime_train.config.detect import read_config

    _refuse_unknown(wanted, "--select")
    _refuse_unknown(unwanted, "--ignore")
    refuse_generation(prime_rl)

    def select(verdict: Verdict) -> Verdict:
        return verdict.only(wanted or None, unwanted) if wanted or unwanted else verdict

    groups = _groups(paths or ["."], unread)
    sources = [tuple(read_config(path) for path in group) for group in groups]
    judge = partial(lint, prime_rl=prime_rl)
    if repair:
        from prime_train.cli.lint.fix import fix_files

        done = fix_files(_single_files(sources, repair.option), judge, select, repair=repair)
        verdicts = list(done.verdicts)
        output = render(verdicts, output_format, done.texts, done) if repair.write else _paint_diff(done.diff)
    else:
        verdicts = [select(judge(*parts[0]) if len(parts) == 1 else lint_merged(parts, prime_rl)) for parts in sources]
        texts = {path: text for parts in sources for text, path in parts}
        output = render(verdicts, output_format, texts)
    return output, all(verdict.passes(strict=strict) for verdict in verdicts)


def _single_files(sources: list[tuple[tuple[str, str], ...]], option: str) -> list[tuple[str, str]]:
    """The sources of one file each. Raises UserError for merged files, because a fix could belong in any of them."""
    for parts in sources:
        if len(parts) > 1:
            raise UserError(
                what=f"{option} cannot fix merged files",
                where=f" {_MERGE} ".join(path for _, path in parts),
                why="a fix could belong in any of the files",
                fix=f"prime-train lint {option} {parts[0][1]}, then lint them together",
            )
    return [parts[0] for parts in sources]


def _paint_diff(diff: str) -> str:
    from prime_train.cli.terminal.render import painter

    paint = painter(sys.stdout)
    styles = {"---": "bold", "+++": "bold", "@@ ": "cyan"} | {"+": "green", "-": "red"}

    def painted(line: str) -> str:
        style = styles.get(line[:3]) or styles.get(line[:1])
        return paint(line, style) if style else line

    return "\n".join(map(painted, diff.split("\n")))


def render(verdicts: list[Verdict], output_format: str, texts: dict[str, str], done: Repaired | None = None) -> str:
    """The verdicts in a format. `texts`: path -> the text that was judged."""
    from prime_train.cli.terminal.render import fit_terminal, json_text, painter
    from prime_train.views.findings import render as view

    match output_format:
        case "json":
            return json_text(view.lint_json(verdicts))
        case "sarif":
            from prime_train.views.findings.sarif import sarif

            return json_text(sarif(verdicts))
        case "github":
            blocks = [view.github(verdict) for verdict in verdicts]
        case "concise":
            blocks = [view.concise(verdict, painter(sys.stdout)) for verdict in verdicts]
        case _:
            blocks = [view.full(verdict, painter(sys.stdout), texts) for verdict in verdicts] + [
                view.summary(verdicts, done.fixed, unsafe_left=done.unsafe_left)
                if done
                else view.summary(verdicts, offers=True)
            ]
            return fit_terminal("\n".join(block for block in blocks if block), sys.stdout)
    return "\n".join(block for block in blocks if block)


def _refuse_unknown(codes: tuple[str, ...], option: str) -> None:
    """Raises UserError for a code that no rule has."""
    if not codes:
        return
    from prime_train.rules.families import load_all

    rules = load_all()
    for code in codes:
        if not any(known.startswith(code) for known in rules):
            raise UserError(
                what=f"no rule is called {code}, and no code starts with it",
                where=f"{option} {code}",
                why=f"the families are {', '.join(sorted({known[:3] for known in rules}))}",
                fix="prime-train rule lists all rules",
            )


def refuse_generation(prime_rl: str | None) -> None:
    """Raises UserError if there is no table for the generation that --prime-rl names."""
    if prime_rl is None:
        return
    from prime_train.config.prime_rl.schema import generations

    if prime_rl not in generations():
        raise UserError(
            what=f"no generation of prime-rl is called {prime_rl}",
            where=f"--prime-rl {prime_rl}",
            why=f"known generations: {', '.join(generations())}",
            fix=f"--prime-rl {generations()[-1]}",
        )


# --- which files ---------------------------------------------------------------------------------


def _groups(paths: list[str], unread: list[UserError] | None) -> list[tuple[str, ...]]:
    """The configs that the arguments name: `a + b` is one config of two files; folders are searched."""
    merged: list[list[str]] = []
    is_joined = False
    for path in paths:
        if path == _MERGE:
            is_joined = True
        elif is_joined and merged:
            merged[-1].append(path)
            is_joined = False
        else:
            merged.append([path])
    if is_joined or paths[0] == _MERGE:
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
        for path in (os.path.normpath(os.path.join(where, name)) for name in sorted(names) if name.endswith(".toml")):
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
            what="the folder has no config of prime-train or prime-rl",
            where=folder,
            why="a folder is searched for *.toml files that are a run.toml or a config of prime-rl",
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

    try:
        return is_config(outside.read_text(path, CONFIG_BYTES, errors="replace").removeprefix("\ufeff"), path)
    except OutsideError as error:
        return error
    except FileNotFoundError:  # a link to nothing
        return False
    except OSError as error:
        return error
