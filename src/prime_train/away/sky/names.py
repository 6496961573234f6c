"""Names of jobs and buckets, and the rules of the clouds for them. Pure."""

from __future__ import annotations

import re

_JOB = re.compile(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*")  # skypilot 0.14.1, task.py, _VALID_NAME_REGEX
_LONGEST_JOB = 48  # a cluster's name adds to it, and clouds allow 63
_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_SHORTEST_BUCKET, _LONGEST_BUCKET = 3, 63
_ADDRESS = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}")
_AZURE_BUCKET = re.compile(r"[a-z0-9](?:-?[a-z0-9])*")
_RESERVED_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
_RESERVED_STARTS = ("xn--", "sthree-", "amzn-s3-demo-", "goog")


def job_name(run_name: str) -> str:
    """The name of the job of a run: the same for each submission, because it is the id of the run in the bucket.

    Characters that SkyPilot refuses become hyphens.
    """
    words = re.sub(r"[^a-zA-Z0-9.]+", "-", run_name)
    words = re.sub(r"[.-]{2,}", "-", words).strip("-.")
    return words[:_LONGEST_JOB].rstrip("-.") or "run"


def bucket_name(job: str, salt: str) -> str:
    """The default bucket of a job. `salt` makes it hard to guess, because all users of a cloud share the names."""
    words = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")
    return f"prime-train-{words[: _LONGEST_BUCKET - 13 - len(salt)].strip('-')}-{salt}"


def job_fault(name: str) -> str:
    """Why SkyPilot refuses the name of a job; "" if it accepts it."""
    if len(name) > _LONGEST_JOB:
        return f"it has {len(name)} characters, and at most {_LONGEST_JOB} fit into the names of machines"
    return "" if _JOB.fullmatch(name) else "letters, digits, and single . _ - between them"


def bucket_fault(name: str, store: str) -> str:
    """Why a cloud refuses the name of a bucket; "" if it accepts it.

    Source: the naming rules of Amazon S3, Google Cloud Storage and Azure containers. SkyPilot checks them at launch.
    """
    if not _SHORTEST_BUCKET <= len(name) <= _LONGEST_BUCKET:
        return f"it has {len(name)} characters, and {_SHORTEST_BUCKET} to {_LONGEST_BUCKET} are allowed"
    if not _BUCKET.fullmatch(name):
        return "lower-case letters, digits, hyphens and dots are allowed, with a letter or digit at both ends"
    if ".." in name or _ADDRESS.fullmatch(name):
        return "two dots in a row and IP addresses are not allowed"
    if name.startswith(_RESERVED_STARTS) or name.endswith(_RESERVED_ENDS) or "google" in name:
        return "this beginning or end is reserved by the cloud"
    if store == "azure" and not _AZURE_BUCKET.fullmatch(name):
        return "Azure allows no dot and no two hyphens in a row"
    return ""
