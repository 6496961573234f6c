"""`prime-train lint`: static checks of config files. Uses no network, no GPU and no facts of this machine."""

import sys
from typing import Annotated, Literal

import typer

from prime_train.cli.lint.files import check
from prime_train.cli.lint.fix import Repair
from prime_train.cli.lint.search import configs_among
from prime_train.cli.terminal.options import Generation, NoColor, Strict
from prime_train.cli.terminal.render import message
from prime_train.core.errors import ExitCode, UserError

Format = Literal["full", "concise", "json", "github", "sarif"]


def lint(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Config files, preset names, Python scripts that start jax.distributed, or folders to search for "
            "run.toml files, configs of prime-rl and configs of other trainers; - reads standard input. A + between "
            "two files merges them, or judges each config of a sweep. Default: this folder.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Run only these rules: codes or prefixes (BAT, CFG001), comma-separated.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Skip these rules: codes or prefixes.")] = None,
    prime_rl: Generation = None,
    output_format: Annotated[Format, typer.Option(help="The format of the output.")] = "full",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output-format json.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write fixes that keep every value you chose into the files.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show the changes of --fix without writing them.")] = False,
    unsafe_fixes: Annotated[
        bool, typer.Option("--unsafe-fixes", help="With --fix or --diff: also apply fixes that change the run.")
    ] = False,
    strict: Strict = False,
    configs_only: Annotated[
        bool, typer.Option("--configs-only", help="Skip files that are not such a config, for hooks.")
    ] = False,
    _no_color: NoColor = False,
) -> None:
    """Check config files without running anything.

    Exit code 1: a finding is at error level, or with --strict at warning level. 2: a file cannot be read. 4: a file or
    folder in a searched folder cannot be read; what is no regular file is named and skipped, and so are run
    directories. With --fix the findings are those that remain, with --diff those of the files as they are.

    Examples:

      prime-train lint run.toml

      prime-train lint configs/ --output-format concise --ignore EVA

      prime-train lint run.toml --diff

      prime-train lint run.toml --fix --unsafe-fixes

      prime-train lint base.toml + overlay.toml

      prime-train lint base.toml + sweep.yaml

      prime-train lint rl.toml --fix --prime-rl 2026-08

      prime-train lint train.py

      prime-train lint axolotl.yaml

      prime-train lint configs/ --strict
    """
    if configs_only and paths:
        paths = configs_among(paths)
        if not paths:
            return
    if unsafe_fixes and not (fix or diff):
        raise UserError(
            what="--unsafe-fixes needs --fix or --diff",
            where="lint --unsafe-fixes",
            why="lint alone changes no file",
            fix="prime-train lint --diff --unsafe-fixes shows them, --fix --unsafe-fixes writes them",
        )
    repair = Repair(write=not diff, unsafe=unsafe_fixes) if fix or diff else None
    unread: list[UserError] = []
    named, codes = paths or [], (_codes(select), _codes(ignore))
    chosen: Format = "json" if as_json else output_format
    output, ok = check(named, *codes, chosen, repair, prime_rl=prime_rl, unread=unread, strict=strict)
    if output:
        typer.echo(output)
    for error in unread:
        is_skipped = error.exit_code is ExitCode.OK
        typer.echo(f"note: {error}" if is_skipped else message(error, sys.stderr), err=True)
    if any(error.exit_code is ExitCode.OUT_OF_REACH for error in unread):
        raise typer.Exit(ExitCode.OUT_OF_REACH)
    if not ok:
        raise typer.Exit(ExitCode.FINDINGS)


def _codes(given: list[str] | None) -> tuple[str, ...]:
    return tuple(code.strip().upper() for text in given or () for code in text.split(",") if code.strip())
