"""Where `prime-train` starts: a plain `lint PATH...` is done at once, everything else is the command line's.

typer coerces every argument through pydantic, and importing the two takes twice as long as a lint.
"""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and end the process with its exit code (docs/exit-codes.md)."""
    code = _plain_lint(sys.argv[1:])
    if code is not None:
        sys.exit(code)
    from prime_train.cli.app import main as command_line

    command_line()


def _plain_lint(arguments: list[str]) -> int | None:
    """The exit code of a lint of paths alone; None where it is something else, or has an error to tell."""
    if arguments[:1] != ["lint"] or any(argument.startswith("-") for argument in arguments):
        return None
    try:
        from prime_train.cli.linting import check

        output, ok = check(arguments[1:])
        print(output, flush=True)  # noqa: T201 - the result of a command goes to stdout
    except Exception:  # nothing is hidden: the command line does the same once more, and tells what is wrong
        return None
    return 0 if ok else 1
