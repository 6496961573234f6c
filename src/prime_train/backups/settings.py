"""Which backup a run has: the keys of its config, else the user's defaults; and the providers. Makes no request.

The defaults of a user are the keys of `[prime_train.backup]` in `backup.toml` in the config folder. Credentials stay in
the environment and in the provider's own files.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
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
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+-]*")  # one folder of a prefix, or the name of a run
_ATTEMPTS = 8  # of one call, each with one more by botocore, in about 15 s: 30 % of failing calls become 1 of 10^8
_MIB = 2**20


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
        what = "no provider and no bucket" if provider is None else f"provider = {provider!r} without a bucket"
        fix = 'provider = "s3" and bucket = "NAME", or `prime-train backup configure` on a terminal'
        raise UserError(what, where, "copies have no place to go to", fix)
    if (form := _BUCKETS.get(provider or "")) is not None and not (form.fullmatch(bucket) and ".." not in bucket):
        why = f"{provider} accepts names such as {'team/checkpoints' if provider == 'hf' else 'team-checkpoints'}"
        fix = "give the bare name, without an address or a folder; folders belong into prefix"
        raise UserError(f"bucket = {redact(bucket)!r} is not the name of a bucket", where, why, fix)
    for part in backup.prefix.split("/") if backup.prefix else ():
        if not NAME.fullmatch(part):
            what = f"prefix = {redact(backup.prefix)!r} has the part {redact(part)!r}"
            why = "a folder in a bucket has letters, digits and . _ = + - here"
            raise UserError(what, where, why, 'prefix = "checkpoints/team", without a slash at its ends')
    if backup.endpoint is not None and not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./-]*)?", backup.endpoint):
        why = "it is https://HOST[:PORT]; a login in it would be stored with the run"
        fix = 'endpoint = "https://s3.us-west-004.backblazeb2.com", credentials by AWS_ACCESS_KEY_ID'
        raise UserError(f"endpoint = {redact(backup.endpoint)!r} is not a plain address", where, why, fix)


def describe(backup: Backup) -> str:
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
        why = "it has the user's defaults for backups"
        fix = f"correct it, or write it again with `prime-train backup configure`, or delete {path}"
        raise UserError(f"it cannot be read: {error}", str(path), why, fix) from None


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


class Provider(NamedTuple):
    """The back end of a provider, and how it is used best."""

    module: str
    package: str
    extra: str
    part_bytes: int = 64 * _MIB  # of one object; as much memory is used per worker
    workers: int = 4  # objects that are sent or received at a time


PROVIDERS = {
    "local": Provider("fsspec.implementations.local", "fsspec", "backup", workers=1),
    "s3": Provider("s3fs", "s3fs", "backup"),
    "b2": Provider("s3fs", "s3fs", "backup"),
    "gcs": Provider("gcsfs", "gcsfs", "gcs"),
    "azure": Provider("adlfs", "adlfs", "azure"),
    # Each object is a commit, and commits to one repository cannot run at the same time.
    "hf": Provider("huggingface_hub", "huggingface_hub", "backup", part_bytes=512 * _MIB, workers=1),
}


def open_file_system(backup: Backup) -> Any:
    """The file system of a provider, without caches. Credentials come from the provider's own environment and files."""
    plain: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    match backup.provider:
        case "local":
            from fsspec.implementations.local import LocalFileSystem

            return LocalFileSystem(**plain)
        case "s3" | "b2":
            from s3fs import S3FileSystem
            from s3fs.core import set_custom_error_handler

            set_custom_error_handler(_is_passing)
            config = {
                # The other modes give up by a quota. More attempts would wait minutes, because the pauses double.
                "retries": {"mode": "legacy", "max_attempts": 1},
                "connect_timeout": 10,
                "read_timeout": 120,
                "request_checksum_calculation": "when_required",  # other servers than AWS refuse the newer checksums
                "response_checksum_validation": "when_required",
            }
            fs = S3FileSystem(**plain, endpoint_url=backup.endpoint, config_kwargs=config)
            fs.retries = _ATTEMPTS
            return fs
        case "gcs":
            from gcsfs import GCSFileSystem

            return GCSFileSystem(**plain)
        case "azure":
            from adlfs import AzureBlobFileSystem

            if not {"AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"} & set(os.environ):
                why = "a container belongs to an account, which the address does not name"
                fix = "set AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_CONNECTION_STRING"
                raise UserError("no storage account is named", describe(backup), why, fix, ExitCode.OUT_OF_REACH)
            return AzureBlobFileSystem(**plain, account_name=os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"), anon=False)
        case _:
            from huggingface_hub import HfFileSystem

            return HfFileSystem(**plain)


def _is_passing(error: Exception) -> bool:
    """Whether the same call may work when it is repeated: the server failed, or asks for patience."""
    status = int(getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status == 429 or status >= 500


def errors_of(provider: str | None) -> tuple[type[Exception], ...]:
    """What the back end raises for a failure outside of this program. Its bugs are others."""
    names = {
        "s3": ("botocore.exceptions:BotoCoreError", "botocore.exceptions:ClientError"),
        "b2": ("botocore.exceptions:BotoCoreError", "botocore.exceptions:ClientError"),
        "gcs": ("gcsfs.retry:HttpError", "google.auth.exceptions:GoogleAuthError"),
        "azure": ("azure.core.exceptions:AzureError",),
        "hf": ("huggingface_hub.errors:HfHubHTTPError", "huggingface_hub.errors:HFValidationError"),
    }.get(provider or "", ())
    found = [getattr(import_module(module), name) for module, _, name in (text.partition(":") for text in names)]
    if provider in ("s3", "b2", "gcs"):
        found.append(import_module("aiohttp").ClientError)
    return (OSError, *found)
