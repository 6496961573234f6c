"""The command line of `prime-train`: registers every command, and turns errors into messages and exit codes.

The body of each command imports what it needs, so that starting any other command stays fast.
"""

import errno
import os
import sys
from typing import Annotated, NoReturn

import typer

from prime_train import __version__
from prime_train.cli import (
    ckpt,
    diagnose,
    estimate,
    find,
    lint,
    logs,
    models,
    prices,
    report,
    rule,
    run,
    schema,
    status,
    stop,
    validate,
    verify_model,
)
from prime_train.cli.options import NoColor
from prime_train.core.errors import ExitCode, UserError

_SIGPIPE_EXIT = 128 + 13  # the exit code in a shell of a program killed by SIGPIPE

app = typer.Typer(
    name="prime-train",
    help="Checks, launches, watches, recovers and explains a language-model training run.",
    epilog="Exit codes: 0 ok, 1 findings, 2 usage, 3 our bug, 4 out of reach, 5 or 6 run failed, 75 resumable.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich takes longer to import than everything else together
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prime-train {__version__}")
        raise typer.Exit


@app.callback()
def _prime_train(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    _no_color: NoColor = False,
) -> None:
    pass


app.command("lint")(lint.lint)
app.command("rule")(rule.rule)
app.command("validate", short_help="Check a config against this machine.")(validate.validate)
app.command("estimate", short_help="Will it fit, how long does it take, what does it cost.")(estimate.estimate)
app.command("find", short_help="The cheapest offers on which a run fits.")(find.find)
app.command("verify-model", short_help="Check what a model can be used for.")(verify_model.verify_model)
app.command("run")(run.run)
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("stop")(stop.stop)
app.command("report")(report.report)
app.command("diagnose", short_help="The root cause in any log files.")(diagnose.diagnose)
app.add_typer(ckpt.app, name="ckpt")
app.add_typer(schema.app, name="schema")
app.add_typer(models.app, name="models")
app.add_typer(prices.app, name="prices")


def main() -> NoReturn:
    """Run the command line and end the process with its exit code (docs/exit-codes.md)."""
    code = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):  # the reader of a pipe, or the terminal, is gone
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it again
        code = code or _SIGPIPE_EXIT
    sys.exit(code)


def _run() -> int:
    try:
        app(prog_name="prime-train")
    except SystemExit as end:
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # typer exits with 1 if the pipe has no reader
            return _SIGPIPE_EXIT
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UserError as error:
        from prime_train.cli.render import message

        typer.echo(message(error, sys.stderr), err=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # any exception that is no UserError is a bug of prime-train
        _report_bug(error)
        return ExitCode.BUG
    return ExitCode.OK


def _report_bug(error: Exception) -> None:
    from prime_train.cli import crash
    from prime_train.cli.render import message

    path = crash.write(error)
    report = UserError(
        what=f"{type(error).__name__}: {error}",
        where="prime-train itself",
        why="this is a bug in prime-train, not in your config or command",
        fix=f"report it with {path} (traceback, versions, redacted environment)",
        exit_code=ExitCode.BUG,
    )
    typer.echo(message(report, sys.stderr), err=True)
