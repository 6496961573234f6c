"""The providers: the fsspec back end of each, how it is opened, and what it raises. Makes no request."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, NamedTuple

from prime_train.backups.settings import describe
from prime_train.core.errors import ExitCode, UserError
from prime_train.spec.supervision import Backup

_ATTEMPTS = 8  # of one call, each with one more by botocore, in about 15 s: 30 % of failing calls become 1 of 10^8
_MIB = 2**20


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
                raise UserError(
                    what="no storage account is named",
                    where=describe(backup),
                    why="a container belongs to an account, which the address does not name",
                    fix="set AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_CONNECTION_STRING",
                    exit_code=ExitCode.OUT_OF_REACH,
                )
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
