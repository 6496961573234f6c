"""`prime-train lint`: static checks of config files. No network, no GPU, no fact of this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prime_train.cli.options import NoColor
from prime_train.errors import ExitCode, UserError

if TYPE_CHECKING:
    from prime_train.rules.judge import Verdict

Format = Literal["full", "concise", "json", "github"]
_NOT_SEARCHED = frozenset({"node_modules", "__pycache__", "venv"})


def lint(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Config files, preset names, or folders to search for run.toml files; - reads standard input. "
            "Without one: this folder.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Only these rules: codes or prefixes (BAT, CFG001), comma-separated.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Not these rules: codes or prefixes.")] = None,
    output_format: Annotated[Format, typer.Option(help="How findings are printed.")] = "full",
    _no_color: NoColor = False,
) -> None:
    """Check config files without running anything.

    Exit code 1 where there is a finding at error level, 2 where a file cannot be read.

    Examples:

      prime-train lint run.toml

      prime-train lint configs/ --output-format concise --ignore EVA
    """
    from prime_train.dialects.read import read_config
    from prime_train.rules.judge import lint as judge

    wanted, unwanted = _codes(select, "--select"), _codes(ignore, "--ignore")
    verdicts = [judge(*read_config(path)).only(wanted or None, unwanted) for path in _files(paths or ["."])]
    output = _rendered(verdicts, output_format)
    if output:
        print(output)  # noqa: T201 - the result of a command goes to stdout
    if not all(verdict.ok for verdict in verdicts):
        raise typer.Exit(ExitCode.FINDINGS)


def _rendered(verdicts: list["Verdict"], output_format: Format) -> str:
    from prime_train.cli.render import paint
    from prime_train.views import findings as view

    def painted(text: str, style: str) -> str:
        return paint(text, style, sys.stdout)

    match output_format:
        case "json":
            import json

            return json.dumps(view.lint_json(verdicts), indent=1, ensure_ascii=False)
        case "github":
            blocks = [view.github(verdict) for verdict in verdicts]
        case "concise":
            blocks = [view.concise(verdict, painted) for verdict in verdicts]
        case "full":
            blocks = [view.full(verdict, painted) for verdict in verdicts] + [view.summary(verdicts)]
    return "\n".join(block for block in blocks if block)


def _codes(given: list[str] | None, option: str) -> tuple[str, ...]:
    """Codes and prefixes of an option. Raises UserError for one that no rule has: it would silence nothing."""
    from prime_train.rules.catalogue import RULES

    codes = tuple(code.strip().upper() for text in given or () for code in text.split(",") if code.strip())
    for code in codes:
        if not any(known.startswith(code) for known in RULES):
            raise UserError(
                what=f"no rule is called {code} or begins so",
                where=f"{option} {code}",
                why=f"the families are {', '.join(sorted({known[:3] for known in RULES}))}",
                fix="prime-train rule lists all of them",
            )
    return codes


def _files(paths: list[str]) -> list[str]:
    """The config files among `paths`: files as they are, folders searched for those that are ours."""
    found: list[str] = []
    for path in paths:
        if path != "-" and Path(path).is_dir():
            found.extend(_search(Path(path)))
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def _search(folder: Path) -> list[str]:
    """The run.toml files under a folder. Raises UserError where there is none: nothing checked is not clean."""
    import os

    found: list[str] = []
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_SEARCHED)
        found.extend(
            str(Path(where, name)) for name in sorted(names) if name.endswith(".toml") and _is_ours(Path(where, name))
        )
    if not found:
        raise UserError(
            what="there is no config of prime-train in it",
            where=str(folder),
            why="folders are searched for *.toml files with [run] and [data]",
            fix="name the file, or start from a preset: prime-train lint quickstart",
        )
    return found


def _is_ours(path: Path) -> bool:
    """Whether the file is a run.toml. One that is not TOML is ours when it has a line [run]."""
    import tomli

    from prime_train.dialects import native

    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError:
        return False
    try:
        return native.recognises(tomli.loads(text))
    except (ValueError, RecursionError):
        return any(line.strip() == "[run]" for line in text.splitlines())
