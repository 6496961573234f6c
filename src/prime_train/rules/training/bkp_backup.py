"""Copies of checkpoints in a bucket. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule
from prime_train.spec import RunSpec


@rule("BKP001", Severity.ERROR)
def provider_without_a_bucket(run: RunSpec) -> Problems:
    """A provider of backups needs a bucket.

    without it no copy has a place to go to, and `run` would refuse to start

    Source: backups/settings.py.

    Bad:
        [prime_train.backup]
        provider = "s3"
    Good:
        [prime_train.backup]
        provider = "s3"
        bucket = "team-checkpoints"
    """
    backup = run.prime_train.backup
    if backup.provider not in (None, "off") and not backup.bucket:
        what = f"provider = {backup.provider!r} without a bucket"
        yield Problem("prime_train.backup.provider", what, fix='`prime_train.backup.bucket` = "NAME"')


@rule("BKP002", Severity.WARNING)
def copies_rarer_than_checkpoints_that_stay(run: RunSpec) -> Problems:
    """A checkpoint should be copied before the retention of the disk deletes it.

    with local copies of fewer steps than lie between two backups, a damaged newest checkpoint leaves nothing between

    Source: backups/sync.py (a backup is made of a checkpoint that is still on the disk).

    Bad:
        [checkpoint]
        interval_steps = 10
        keep_last = 2
        [prime_train.backup]
        provider = "s3"
        bucket = "team-checkpoints"
        interval_steps = 1000
    Good:
        [checkpoint]
        interval_steps = 10
        keep_last = 2
        [prime_train.backup]
        provider = "s3"
        bucket = "team-checkpoints"
        interval_steps = 20
    """
    backup, saved = run.prime_train.backup, run.checkpoint
    if backup.provider in (None, "off") or backup.interval_steps is None or saved.interval_steps is None:
        return
    on_disk_steps = saved.interval_steps * saved.keep_last
    if backup.interval_steps > on_disk_steps:
        what = f"a copy every {backup.interval_steps} steps, and the disk has the last {on_disk_steps} steps"
        patch = {"prime_train.backup.interval_steps": on_disk_steps}
        yield Problem("prime_train.backup.interval_steps", what, patch=patch)


@rule("BKP003", Severity.ERROR)
def packing_of_checkpoints_that_prime_rl_reads(run: RunSpec) -> Problems:
    """Only checkpoints of the bundled trainer can be packed.

    prime-rl reads its files itself, and they have no manifest of hashes, so nothing would be packed

    Source: programs/prime_rl/program.py (keeps_hashes), checkpoints/packing/archive.py.

    Bad (prime-rl 2026-08):
        [prime_train.backup]
        compress = true
    Good (prime-rl 2026-08):
        [prime_train.backup]
        compress = false
    """
    if run.prime_rl is not None and run.prime_train.backup.compress:
        what = "compress = true, and checkpoints of prime-rl cannot be packed"
        yield Problem("prime_train.backup.compress", what, patch={"prime_train.backup.compress": False})
