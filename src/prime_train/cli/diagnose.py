"""`prime-train diagnose`: the one root cause in any logs. Reads only."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from prime_train.cli.options import AsJson, NoColor
from prime_train.errors import ExitCode


def diagnose(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...", help="Log files (.gz too), folders, a run or its directory, or - for standard input."
        ),
    ],
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """The root cause in any log files: class, line, why, fix.

    The first failure in time over all logs counts, not what followed it; the logs should be those of one run. Of a
    run the newest attempt is read. Exit code 0: nothing is wrong, 1: a cause was found, 2: a log could not be read.

    Examples:

      prime-train diagnose trainer.log orchestrator.log inference.log

      prime-train diagnose outputs/rl --json | jq .cause

      dmesg | prime-train diagnose - trainer.log
    """
    from prime_train.cli.diagnosing import diagnosed, last_failure
    from prime_train.cli.render import message, paint
    from prime_train.redaction import redact, redact_all, secrets
    from prime_train.views import cause as view

    with _counted() as told:
        judged = diagnosed(logs, told)
    names = [scan.name for scan in judged.scans]
    hidden = secrets(os.environ)
    if as_json:
        import json

        document = redact_all(view.as_json(judged.diagnosis, names, judged.unread), hidden)
        print(json.dumps(document, indent=1, ensure_ascii=False))  # noqa: T201 - the result goes to stdout
    elif names:
        text = view.text(judged.diagnosis, len(names), lambda text, style: paint(text, style, sys.stdout))
        print(redact(text, hidden))  # noqa: T201 - the result goes to stdout
    for error in judged.unread:
        typer.echo(message(error, sys.stderr), err=True)
    if judged.diagnosis.cause is not None:
        raise typer.Exit(ExitCode.FINDINGS)
    if not judged.unread and (ended := last_failure(logs)) is not None:
        lines = view.attempt_lines(ended, lambda text, style: paint(text, style, sys.stderr))
        typer.echo(redact("its supervisor says:\n" + "\n".join(lines), hidden), err=True)
        raise typer.Exit(ExitCode.FINDINGS)
    if judged.unread:
        raise typer.Exit(ExitCode.USAGE)


@contextmanager
def _counted() -> Iterator[Callable[[int], None]]:
    """On a terminal how much was read, from 100 MB on; nothing elsewhere. The value is told how many bytes."""
    read_bytes = shown_mb = 0

    def told(size: int) -> None:
        nonlocal read_bytes, shown_mb
        read_bytes += size
        if sys.stderr.isatty() and read_bytes // 10**8 > shown_mb // 100:
            shown_mb = read_bytes // 10**6
            sys.stderr.write(f"\r{shown_mb} MB read")
            sys.stderr.flush()

    yield told
    if shown_mb:
        sys.stderr.write("\r\x1b[K")
