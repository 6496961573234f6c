"""The entry point of `prime-train`: runs a plain `lint PATH...` directly, and everything else through cli/app.py.

Importing typer and the commands takes twice as long as a lint.
"""

import gc
import sys
from typing import NoReturn

from prime_train.cli.terminal import standard_streams
from prime_train.cli.terminal.standard_streams import open_closed

_LONG_LIVED = 500_000  # objects; a lint of one file creates a tenth, and nearly all of them stay until its end


def main() -> NoReturn:
    """Run the command line and end the process with its exit code (docs/exit-codes.md)."""
    open_closed()
    standard_streams.install()
    code = _plain_lint(sys.argv[1:])
    if code is not None:
        sys.exit(code)
    from prime_train.cli.app import main as command_line

    command_line()


def _plain_lint(arguments: list[str]) -> int | None:
    """The exit code of a lint without options; None for other commands, and if an error has to be reported."""
    if arguments[:1] != ["lint"] or any(argument.startswith("-") for argument in arguments):
        return None
    collected = gc.get_threshold()
    gc.set_threshold(_LONG_LIVED)  # to look for garbage at the start and at the end takes a sixth of a lint
    try:
        from prime_train.cli.lint.files import check

        output, ok = check(arguments[1:])
        print(output, flush=True)  # noqa: T201 - the result of a command goes to stdout
    except Exception:  # cli/app.py runs the same lint again and reports the error
        gc.set_threshold(*collected)
        return None
    gc.freeze()
    return 0 if ok else 1
