"""`prime-train config save`, `list`, `restore` and `history`: versions of configs outside of runs and in them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.cli.config import saved
from prime_train.cli.config.source import ambiguous, find_source, list_meanings, split_number
from prime_train.cli.terminal.options import AsJson, NoColor, RunName
from prime_train.cli.terminal.output import print_json, print_table, write_file
from prime_train.config import detect
from prime_train.config.compare import compare
from prime_train.config.differences import Difference
from prime_train.core.errors import ExitCode, UserError, explain_disk_error
from prime_train.core.redaction import own_secrets, redact
from prime_train.rules.config.sec_secrets import secret_in_file
from prime_train.toml.document import dotted
from prime_train.views.config.differences import show
from prime_train.views.config.masked import is_secret_key, mask
from prime_train.views.run.config_history import ConfigHistory, KeptConfig, read_config_history
from prime_train.views.run.runs import find

_MOST_SHOWN = 6  # changes of a config in a row of `history`


def save(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A plain name: letters, digits, - _ and .")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A config, or anything that `config show` takes.")],
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Why it is worth keeping.")] = "",
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Keep a config as the next version of a name, outside of runs: NAME@1, NAME@2. No version is replaced.

    A file with a secret in it is refused.

    Examples:

      prime-train config save qwen-4b-long rl.toml --note "the first without truncation"

      prime-train config save qwen-4b-long first-run@3
    """
    source = find_source(file)
    if len(source.parts) > 1:
        fix = f"save them one by one: prime-train config save {name} {source.parts[0][1]}"
        raise UserError("it is more than one file", source.title, "a version is the text of one file", fix)
    text, path = source.parts[0]
    _refuse_secrets(text, path, note)
    try:
        kept = saved.save(name, Path(path.rpartition(":")[2]).name, text, note)
    except OSError as error:
        problem = explain_disk_error(error.errno or 0, str(saved.folder()))
        raise UserError(problem.what, str(saved.folder()), problem.why, problem.fix, ExitCode.OUT_OF_REACH) from None
    if as_json:
        print_json(_version(kept))
    else:
        typer.echo(f"saved {kept.title}; back into a file: prime-train config restore {kept.title} FILE", err=True)


def _refuse_secrets(text: str, path: str, note: str) -> None:
    """Raises UserError for a text with a secret in it."""
    faults = list(secret_in_file(detect.read(text, path)))
    where = f"{path}: {dotted(faults[0].key)}" if faults else path
    if faults or redact(text, own_secrets()) != text or redact(note, own_secrets()) != note:
        raise UserError(
            what="it contains a secret",
            where=where,
            why="a saved config is kept for long, shown and sent to others, and the secret with it",
            fix="take it out, and pass it through the environment",
        )


def _version(kept: saved.SavedConfig) -> dict[str, Any]:
    return {"version": 1, "name": kept.name, "number": kept.number, "saved_s": round(kept.saved_s, 3)} | {
        "file": kept.file,
        "note": kept.note,
    }


def list_(as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """The saved configs, each version with its note.

    Examples:

      prime-train config list

      prime-train config list --json | jq -r '.configs[].name'
    """
    found = [saved.read(name, number) for name in saved.list_names() for number in saved.list_numbers(name)]
    if as_json:
        print_json({"version": 1, "configs": [_version(one) | {"title": one.title} for one in found]})
    else:
        rows = [(one.title, _clock(one.saved_s), one.file, redact(one.note)) for one in found]
        print_table(rows, ("CONFIG", "SAVED", "FILE", "NOTE"), f"nothing is saved in {saved.folder()}")


def history(run: RunName, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Every config that a run ever had: its attempts, who started them, and what changed against the one before.

    Examples:

      prime-train config history first-run

      prime-train config history first-run --json | jq '.configs[].changed'
    """
    found = read_config_history(find(run, Path.cwd()))
    changes = _list_changes(found)
    if as_json:
        rows = [_kept(one, changed) for one, changed in zip(found.configs, changes, strict=True)]
        print_json({"version": 1, "run": found.run_dir.path.name, "configs": rows, "unknown_attempts": found.unknown})
        return
    table = [_row(one, changed) for one, changed in zip(found.configs, changes, strict=True)]
    print_table(table, ("N", "ATTEMPTS", "FIRST USED", "BY", "CHANGED"), "the run has no config")
    if found.unknown:
        typer.echo(f"attempts whose config is not known: {', '.join(map(str, found.unknown))}", err=True)


def _list_changes(found: ConfigHistory) -> list[tuple[Difference, ...] | str]:
    """What changed against the config before; a text where one of the two cannot be read."""
    changes: list[tuple[Difference, ...] | str] = [()]
    for before, after in zip(found.configs, found.configs[1:], strict=False):
        try:
            readings = [detect.read(*found.read(one)) for one in (before, after)]
            changes.append(compare(*readings).differences)
        except (UserError, AssertionError) as error:
            changes.append(f"not known: {error.what}" if isinstance(error, UserError) else "not known: it has faults")
    return changes[: len(found.configs)]


def _kept(one: KeptConfig, changed: tuple[Difference, ...] | str) -> dict[str, Any]:
    hidden = own_secrets()
    listed = [
        {"key": each.key, "before": mask(each.key, each.before, hidden), "after": mask(each.key, each.after, hidden)}
        for each in (() if isinstance(changed, str) else changed)
    ]
    openings = [{"time_s": round(opening.time_s, 3), "by": opening.by or None} for opening in one.openings]
    unknown = changed if isinstance(changed, str) else None
    return {"number": one.number, "is_last": one.is_last, "attempts": one.attempts, "openings": openings} | {
        "changed": listed,
        "changes_not_known": unknown,
    }


def _row(one: KeptConfig, changed: tuple[Difference, ...] | str) -> tuple[str, ...]:
    attempts = ", ".join(map(str, one.attempts)) or "-"
    first = _clock(one.openings[0].time_s) if one.openings else "not known"
    by = ", ".join(dict.fromkeys(opening.by for opening in one.openings if opening.by)) or "not known"
    return str(one.number), attempts, first, by, changed if isinstance(changed, str) else _describe(changed)


def _describe(changed: Sequence[Difference]) -> str:
    hidden = own_secrets()
    texts = [
        one.key if is_secret_key(one.key) else
        f"{one.key} {show(mask(one.key, one.before, hidden))} -> {show(mask(one.key, one.after, hidden))}"
        for one in changed[:_MOST_SHOWN]
    ]  # fmt: skip
    left = len(changed) - _MOST_SHOWN
    return "; ".join([*texts, *([f"and {left} more"] if left > 0 else [])]) or "-"


def restore(
    name: Annotated[str, typer.Argument(metavar="NAME|RUN", help="A saved NAME or NAME@N, or a run.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[N] [FILE]", help="Of a run the number of its config; the file to write."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    _no_color: NoColor = False,
) -> None:
    """Write a saved config, or the Nth config of a run, into a file. The record of the run stays as it is.

    Without FILE it is written beside you: under the name that it was saved from, or as RUN-N.toml. A file that exists
    is replaced only with --force.

    Examples:

      prime-train config restore qwen-4b-long

      prime-train config restore qwen-4b-long@2 rl.toml --force

      prime-train config restore first-run 3 rl.toml
    """
    rest = list(words or ())
    text, target = _find_kept(name, rest)
    if rest:
        raise UserError("more words than a name and a file", " ".join(rest), "one file is written", "name one FILE")
    path = Path(target)
    _write(path, text, force=force)
    typer.echo(f"wrote {path}; next: prime-train validate {path}", err=True)


def _find_kept(name: str, rest: list[str]) -> tuple[str, str]:
    """(text, file to write). Takes the words that belong to it out of `rest`. Raises UserError."""
    given, _, plain = name.partition(":")
    if given not in ("run", "saved") or not plain:
        meanings = [] if os.sep in name else list_meanings(name)
        if "run" in meanings and "saved" in meanings:
            raise ambiguous(name, f"prime-train config restore run:{name} N, or saved:{name}")
        given, plain = ("saved", name) if "saved" in meanings or split_number(name)[1] is not None else ("run", name)
        if not meanings and os.sep not in name:
            why = f"saved are: {', '.join(saved.list_names()) or 'none'}"
            raise UserError("no saved config and no run has this name", name, why, "prime-train config list")
    if given == "saved":
        one = saved.read(*split_number(plain))
        return one.text, rest.pop(0) if rest else one.file
    found = read_config_history(find(plain, Path.cwd()))
    if not rest or not rest[0].isdecimal():
        why = f"the run has the configs 1 to {found.configs[-1].number}"
        raise UserError("the number of the config is missing", name, why, f"prime-train config history {plain}")
    number = int(rest.pop(0)[:9])
    text, _ = found.read(found.find(number))
    return text, rest.pop(0) if rest else f"{found.run_dir.path.name}-{number}.toml"


def _write(path: Path, text: str, *, force: bool) -> None:
    """Raises UserError for a file that exists, unless `force`, and for one that cannot be written."""
    if os.path.lexists(path) and (not force or path.is_dir()):
        what = "it is a folder" if path.is_dir() else "the file exists"
        raise UserError(what, str(path), "a config is put back into a file of its own", "name another FILE, or --force")
    write_file(path, text)


def _clock(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(time_s))
