"""`prime-train lint`: static checks of config files. No network, no GPU, no fact of this machine."""

from typing import Annotated, Literal

import typer

from prime_train.cli.options import NoColor
from prime_train.errors import ExitCode

Format = Literal["full", "concise", "json", "github", "sarif"]


def lint(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Config files, preset names, Python scripts that start jax.distributed, or folders to search for "
            "run.toml files and configs of prime-rl; - reads standard input. A + between two prime-rl files merges "
            "them. Without one: this folder.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Only these rules: codes or prefixes (BAT, CFG001), comma-separated.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Not these rules: codes or prefixes.")] = None,
    prime_rl: Annotated[
        str | None,
        typer.Option(
            "--prime-rl",
            metavar="GENERATION",
            help="Judge prime-rl files that name no generation themselves by this one, as 2026-08.",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[Format, typer.Option(help="How findings are printed.")] = "full",
    fix: Annotated[
        bool, typer.Option("--fix", help="Write fixes into the files that keep every value you chose.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what --fix would change, and write nothing.")] = False,
    unsafe_fixes: Annotated[
        bool, typer.Option("--unsafe-fixes", help="With --fix or --diff: also fixes that change what the run does.")
    ] = False,
    configs_only: Annotated[
        bool, typer.Option("--configs-only", help="Leave out files that are no such config: for hooks.")
    ] = False,
    _no_color: NoColor = False,
) -> None:
    """Check config files without running anything.

    Exit code 1 where there is a finding at error level, 2 where a file cannot be read. With --fix it speaks
    of what is left, with --diff of the files as they are.

    Examples:

      prime-train lint run.toml

      prime-train lint configs/ --output-format concise --ignore EVA

      prime-train lint run.toml --diff

      prime-train lint run.toml --fix --unsafe-fixes

      prime-train lint base.toml + overlay.toml

      prime-train lint rl.toml --fix --prime-rl 2026-08

      prime-train lint train.py
    """
    from prime_train.cli.linting import Repair, check, configs_among
    from prime_train.errors import UserError

    if configs_only and paths:
        paths = configs_among(paths)
        if not paths:
            return
    if unsafe_fixes and not (fix or diff):
        raise UserError(
            what="--unsafe-fixes says which fixes, and nothing asks for any",
            where="lint --unsafe-fixes",
            why="a lint changes no file by itself",
            fix="prime-train lint --diff --unsafe-fixes shows them, --fix --unsafe-fixes writes them",
        )
    repair = Repair(write=not diff, unsafe=unsafe_fixes) if fix or diff else None
    output, ok = check(paths or [], _codes(select), _codes(ignore), output_format, repair, prime_rl=prime_rl)
    if output:
        print(output)  # noqa: T201 - the result of a command goes to stdout
    if not ok:
        raise typer.Exit(ExitCode.FINDINGS)


def _codes(given: list[str] | None) -> tuple[str, ...]:
    return tuple(code.strip().upper() for text in given or () for code in text.split(",") if code.strip())
