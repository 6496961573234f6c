"""`prime-train backup configure`: asks for the user's defaults, and tries them before it saves them."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.backups import settings
from prime_train.backups.store import Store, open_store
from prime_train.cli.terminal.options import NoColor
from prime_train.core.errors import ExitCode, UserError
from prime_train.spec.supervision import Backup


def configure(
    provider: Annotated[
        str | None, typer.Option("--provider", metavar="|".join(settings.PROVIDERS), help="Storage of the copies.")
    ] = None,
    bucket: Annotated[str | None, typer.Option("--bucket", help="Bucket, folder (local) or repository (hf).")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Folder in the bucket.")] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="Address of an S3-compatible server.")] = None,
    interval_steps: Annotated[
        int | None, typer.Option("--interval-steps", min=1, help="Least steps between copies.")
    ] = None,
    keep_last: Annotated[int | None, typer.Option("--keep-last", min=1, help="Newest copies to keep.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the saved defaults; change nothing.")] = False,
    _no_color: NoColor = False,
) -> None:
    """Write the user's defaults for backups, after an object was written, read and deleted in the bucket.

    Asks for what no option gives, if it runs on a terminal. Credentials are not asked for and not stored: they come
    from the provider's own environment variables and files (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS,
    AZURE_STORAGE_CONNECTION_STRING, HF_TOKEN).

    Examples:

      prime-train backup configure

      prime-train backup configure --provider s3 --bucket team-checkpoints --keep-last 3

      prime-train backup configure --check
    """
    before = settings.read_defaults()
    if check:
        if before is None:
            raise UserError(
                "there are no defaults",
                str(settings.defaults_file()),
                "they are written by this command",
                "prime-train backup configure --provider s3 --bucket NAME",
            )
        wanted = before
    else:
        given = {
            "provider": provider,
            "bucket": bucket,
            "prefix": prefix,
            "endpoint": endpoint,
            "interval_steps": interval_steps,
            "keep_last": keep_last,
        }
        wanted = _ask(before or Backup(), {key: value for key, value in given.items() if value is not None})
    settings.check(wanted, "prime-train backup configure")
    if wanted.provider == "local" and wanted.bucket is not None:  # each run reads it from another folder
        wanted = replace(wanted, bucket=str(Path(wanted.bucket).expanduser().absolute()))
    round_trip(open_store(wanted))
    typer.echo(f"written, read and deleted an object in {settings.describe(wanted)}", err=True)
    if not check:
        typer.echo(f"saved in {settings.write_defaults(wanted)}: every run without its own settings is backed up there")


_QUESTIONS = {
    "provider": f"Provider ({', '.join(settings.PROVIDERS)})",
    "bucket": "Bucket (local: an existing folder; hf: USER/REPOSITORY)",
    "prefix": "Folder in the bucket (empty: none)",
    "interval_steps": "Least steps between copies (empty: every checkpoint)",
    "keep_last": "Number of the newest copies to keep",
}


def _ask(before: Backup, given: dict[str, Any]) -> Backup:
    """The defaults with what was given, and on a terminal with the answers to the other questions. Raises UserError."""
    if sys.stdin.isatty() and "bucket" not in given:
        for key, question in _QUESTIONS.items():
            if key not in given:
                now = getattr(before, key)
                answer = typer.prompt(question, default="" if now is None else str(now), err=True).strip()
                given[key] = int(answer) if answer.isdecimal() and key != "bucket" else (answer or None)
        given["prefix"] = given["prefix"] or ""
    try:
        return settings.parse({key: value for key, value in (asdict(before) | given).items() if value is not None})
    except ValueError as error:
        raise UserError(
            what=str(error),
            where="prime-train backup configure",
            why=f"a provider is one of {', '.join(settings.PROVIDERS)}, and counts are whole numbers above 0",
            fix="prime-train backup configure --provider s3 --bucket NAME --keep-last 3",
        ) from None


def round_trip(store: Store) -> None:
    """Write, list, read and delete one object. Raises UserError where one of them fails."""
    import secrets

    store.check()
    name, content = f"prime-train-check-{secrets.token_hex(8)}", secrets.token_bytes(256)
    store.write(f"{name}/object", content)
    try:
        found, listed = store.read(f"{name}/object", len(content)), store.list(name)
    finally:
        store.delete([f"{name}/object"])
    left = store.list(name)
    if found != content or "object" not in listed or left:
        raise UserError(
            what="an object that was written is not found, not the same, or not deleted",
            where=settings.describe(store.backup),
            why="a backup there could not be trusted",
            fix="check the rights of the credentials (list, read, write, delete) and rules of the bucket",
            exit_code=ExitCode.OUT_OF_REACH,
        )
