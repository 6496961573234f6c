"""Which backup a run has: the keys of its config, else the user's defaults. Reads and writes one file; no secrets.

The defaults of a user are the keys of `[prime_train.backup]` in `backup.toml` in the config folder. Credentials stay in
the environment and in the provider's own files.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import tomli

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.installation import config_path
from prime_train.core.redaction import redact
from prime_train.core.rundir import write_atomic
from prime_train.spec.supervision import Backup

_MOST_BYTES = 64 * 1024
_BUCKETS = {
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    "b2": re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{4,61}[A-Za-z0-9]"),
    "gcs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "azure": re.compile(r"[a-z0-9]([a-z0-9]|-(?!-)){1,61}[a-z0-9]"),
    "hf": re.compile(r"((datasets|spaces)/)?[\w.-]+/[\w.-]+"),
}
PROVIDERS = ("local", "s3", "b2", "gcs", "azure", "hf")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+-]*")  # one folder of a prefix, or the name of a run


def defaults_file() -> Path:
    return Path(config_path("backup.toml"))


def resolve(backup: Backup) -> Backup | None:
    """The backup of a run whose config has `backup`; None where it has none. Raises UserError.

    A config that names a provider uses its own keys alone. Otherwise each key that it leaves at its default has the
    value of the user's defaults.
    """
    if backup.provider == "off":
        return None
    if backup.provider is None:
        defaults = read_defaults()
        if defaults is None or defaults.provider in (None, "off"):
            return None
        plain = Backup()
        changed = {name: value for name, value in asdict(backup).items() if value != getattr(plain, name)}
        backup = replace(defaults, **changed)
    check(backup, "[prime_train.backup]")
    return backup


def check(backup: Backup, where: str) -> None:
    """Raise UserError for a location that cannot exist or that contains a login."""
    provider, bucket = backup.provider, backup.bucket
    if not bucket:
        raise UserError(
            what="no provider and no bucket" if provider is None else f"provider = {provider!r} without a bucket",
            where=where,
            why="copies have no place to go to",
            fix='provider = "s3" and bucket = "NAME", or `prime-train backup configure` on a terminal',
        )
    if (form := _BUCKETS.get(provider or "")) is not None and not (form.fullmatch(bucket) and ".." not in bucket):
        raise UserError(
            what=f"bucket = {redact(bucket)!r} is not the name of a bucket",
            where=where,
            why=f"{provider} accepts names such as {'team/checkpoints' if provider == 'hf' else 'team-checkpoints'}",
            fix="give the bare name, without an address or a folder; folders belong into prefix",
        )
    for part in backup.prefix.split("/") if backup.prefix else ():
        if not NAME.fullmatch(part):
            raise UserError(
                what=f"prefix = {redact(backup.prefix)!r} has the part {redact(part)!r}",
                where=where,
                why="a folder in a bucket has letters, digits and . _ = + - here",
                fix='prefix = "checkpoints/team", without a slash at its ends',
            )
    if backup.endpoint is not None and not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./-]*)?", backup.endpoint):
        raise UserError(
            what=f"endpoint = {redact(backup.endpoint)!r} is not a plain address",
            where=where,
            why="it is https://HOST[:PORT]; a login in it would be stored with the run",
            fix='endpoint = "https://s3.us-west-004.backblazeb2.com", credentials by AWS_ACCESS_KEY_ID',
        )


def describe(backup: Backup) -> str:
    """The location of the copies as one address."""
    scheme = {"local": "file", "b2": "b2", "gcs": "gs", "azure": "az"}.get(backup.provider or "", backup.provider)
    return f"{scheme}://{backup.bucket}" + (f"/{backup.prefix}" if backup.prefix else "")


def read_defaults() -> Backup | None:
    """The user's defaults; None without the file. Raises UserError."""
    path = defaults_file()
    try:
        return parse(tomli.loads(outside.read_text(path, _MOST_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            what=f"it cannot be read: {error}",
            where=str(path),
            why="it has the user's defaults for backups",
            fix=f"correct it, or write it again with `prime-train backup configure`, or delete {path}",
        ) from None


def parse(document: dict[str, Any]) -> Backup:
    """The Backup with these keys. Raises ValueError."""
    import json

    from pydantic import TypeAdapter, ValidationError

    known = {field.name for field in fields(Backup)}
    unknown = sorted(set(document) - known)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    try:
        return TypeAdapter(Backup).validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(redact(f"{key} = {first['input']!r}: {first['msg'].lower()}")) from None


def write_defaults(backup: Backup) -> Path:
    """Write the keys that differ from the schema's defaults; returns the path. Raises OSError."""
    from prime_train.toml.document import to_toml  # here, because a supervisor writes no defaults

    plain, path = Backup(), defaults_file()
    lines = [f"{name} = {to_toml(value)}" for name, value in asdict(backup).items() if value != getattr(plain, name)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "# Defaults of [prime_train.backup] for every run. No credentials.\n" + "\n".join(lines) + "\n")
    return path


def is_safe_run_name(name: str) -> bool:
    """Whether a run's name can be a folder of a bucket."""
    return bool(NAME.fullmatch(name)) and len(name) <= 200 and os.sep not in name
