"""The disk that checkpoints go to. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.core.units import format_bytes, format_seconds
from prime_train.rules.model.model_sizes import sizes_of
from prime_train.rules.rule import Problems, facts_rule, known, suggest
from prime_train.rules.training.run_needs import architecture, checkpoint_bytes, checkpoints_at_once
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import prime_rl_of, silence_limit_s, traits_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_OF_A_CONTAINER = ("overlay", "aufs")
_OBJECT_STORES = ("fuse.s3fs", "fuse.gcsfuse", "fuse.goofys", "fuse.rclone", "fuse.mountpoint-s3", "fuse.blobfuse2")


@facts_rule("DSK001", Severity.ERROR, needs=("save_dir", "model_folder", "tokenizer_folder"))
def too_little_disk(run: RunSpec, facts: Facts) -> Problems:
    """The checkpoints that are kept, and the one being written, must fit on the disk.

    a full disk ends the run at a checkpoint, and the training since the previous checkpoint is lost

    A checkpoint is counted with 12 bytes per parameter: weights and the two moments of AdamW in fp32. With
    `delete_after_upload` older ones leave the disk when their copy in the bucket is proved, so only `local_keep` of
    them, the one being uploaded and the one being written must fit; keep_last beyond that is a note.

    Source: ZeRO, arXiv 1910.02054, s. 3.1 (the bytes of weights and moments).

    Bad:
        [facts.save_dir]
        free_bytes = 104857600
    Bad:
        [prime_train.backup]
        provider = "s3"
        bucket = "team-checkpoints"
        delete_after_upload = true
        [checkpoint]
        keep_last = 20
        [facts.save_dir]
        free_bytes = 262144000
    Good:
        [checkpoint]
        keep_last = 1
        [facts.save_dir]
        free_bytes = 104857600
    """
    decoder, folder = architecture(run, facts), known(facts.save_dir)
    if decoder is None or folder.refusal:
        return
    one, count = checkpoint_bytes(decoder), checkpoints_at_once(run)
    room = folder.free_bytes + folder.held_bytes
    if count * one <= room:
        return
    what = f"{count} checkpoints of {format_bytes(one)} = {format_bytes(count * one)}"
    what = f"{what}, and {folder.existing} has room for {format_bytes(room)}"
    fix = "make room there, give `run.dir` on another disk, or keep fewer"
    yield _judge_with_offload(run, "checkpoint.keep_last", what, fix, fits=room // one)


@facts_rule("DSK005", Severity.ERROR, needs=("save_dir",))
def too_little_disk_for_prime_rl(run: RunSpec, facts: Facts) -> Problems:
    """The checkpoints that prime-rl keeps, and the one it is writing, must fit on the disk.

    a full disk ends the run at a checkpoint, and prime-rl later resumes from that incomplete checkpoint

    The trainer's weights and AdamW's two moments are counted: 12 bytes per parameter, 6 with bfloat16 weights; other
    optimizers keep at least one moment. Judged for full training of models in the registry, if checkpoints go to the
    run directory.

    Source: ZeRO, arXiv 1910.02054, s. 3.1; a 32B model's checkpoint is about 300 GB (prime-rl issue 786).

    Bad (prime-rl 2026-08):
        [facts.save_dir]
        free_bytes = 42949672960
    Good (prime-rl 2026-08):
        [facts.save_dir]
        free_bytes = 107374182400
    """
    parts = prime_rl_of(run)
    trainer, saving, folder = parts.trainer, parts.saving, known(facts.save_dir)
    if trainer is None or saving is None or saving.output_dir is not None or parts.lora is not None or folder.refusal:
        return
    one, count = _prime_rl_checkpoint_bytes(run), _prime_rl_checkpoints_at_once(run)
    if one is None or count is None:
        return
    room = folder.free_bytes + folder.held_bytes
    if count * one > room:
        kept = "1 checkpoint" if count == 1 else f"{count} checkpoints"
        what = f"{kept} of {format_bytes(one)} = {format_bytes(count * one)} for {trainer.model_name}"
        what = f"{what}, and {folder.existing} has room for {format_bytes(room)}"
        fix = "make room there, give `launch.output_dir` on another disk, or keep fewer"
        yield _judge_with_offload(run, "saving.keep_last", what, fix, fits=room // one)


def _judge_with_offload(run: RunSpec, field: str, what: str, fix: str, *, fits: int) -> Problem:
    """The problem of keep_last beyond the disk, which has room for `fits` checkpoints.

    It is a note if older checkpoints leave the disk for a bucket, and an error if even those that stay do not fit.
    """
    backup = run.prime_train.backup
    if backup.provider in (None, "off") or not backup.delete_after_upload:
        offload = "; or let older ones leave for a bucket: prime_train.backup.delete_after_upload = true"
        return Problem(field, what, fix=f"{fix}{offload}")
    needed = backup.local_keep + 2  # and one that is being uploaded, and one that is being written
    if fits < needed:
        why = (
            f"delete_after_upload still keeps {needed} here: local_keep = {backup.local_keep}, one on its way, one new"
        )
        return Problem(field, what, fix=fix, why=why)
    why = f"older ones are deleted here when their copy is proved by hash, so at most {needed} are here"
    return Problem(field, what, fix="nothing, while uploads keep up with saves", why=why, severity=Severity.NOTE)


def _prime_rl_checkpoint_bytes(run: RunSpec) -> int | None:
    """Lower bound on one checkpoint of full training; None if the model is not in the registry."""
    parts = prime_rl_of(run)
    trainer, sizes = parts.trainer, sizes_of(parts.trainer.model_name if parts.trainer is not None else None)
    if trainer is None or sizes is None or parts.saving is None or parts.lora is not None or trainer.fake_data:
        return None
    states = 3 if trainer.optimizer in (None, "adamw") else 2
    return sizes.parameters * states * (2 if trainer.optimization_dtype == "bfloat16" else 4)


def _prime_rl_checkpoints_at_once(run: RunSpec) -> int | None:
    """The most checkpoints that are on the disk at one time; None if the run has no end and keeps them all."""
    parts = prime_rl_of(run)
    interval, every, max_steps = run.checkpoint.interval_steps, run.checkpoint.keep_every_steps, run.run.max_steps
    if interval is None:
        return 1
    if max_steps >= ENDLESS_STEPS:
        return parts.saving.keep_last + 1 if parts.saving is not None and parts.saving.keep_last else None
    written = max_steps // interval + (max_steps % interval > 0)
    if parts.saving is None or parts.saving.keep_last is None:
        return written
    return min(written, parts.saving.keep_last + 1 + (max_steps // every if every else 0))


@facts_rule("DSK002", Severity.ERROR, needs=("save_dir",))
def save_dir_not_writable(run: RunSpec, facts: Facts) -> Problems:
    """The run directory must be writable.

    the run writes its state there before anything else

    Source: supervise/processes/lock.py (the lock is the first file of a run).

    Bad:
        [facts.save_dir]
        refusal = "Permission denied"
    Bad (prime-rl 2026-08):
        [facts.save_dir]
        refusal = "Read-only file system"
    Good:
        [run]
        dir = "runs"
    """
    folder = known(facts.save_dir)
    if folder.refusal:
        at = traits_of(run).write_root_field
        yield Problem(
            at,
            f"{folder.existing} takes no file: {folder.refusal}",
            fix=f'`{at}` = "{traits_of(run).usual_write_root}", below a folder of your own',
        )


@facts_rule("DSK003", Severity.WARNING, needs=("save_dir",))
def file_system_for_checkpoints(run: RunSpec, facts: Facts) -> Problems:
    """Checkpoints should go to a disk that outlives the process, and that can rename and append.

    files in memory or in a container's own layer disappear with it, and the run cannot resume from them

    A bucket that is mounted as a folder is an error for the bundled trainer, because it appends to its event file and
    completes a checkpoint by a rename. A container's layer and NFS are notes: the layer is lost with the container,
    and NFS is as fast as its network.

    Source: proc_pid_mountinfo(5); README of s3fs-fuse, limitations; docs.docker.com, storage drivers.

    Bad:
        [facts.save_dir]
        file_system = "tmpfs"
    Bad:
        [facts.save_dir]
        file_system = "fuse.s3fs"
    Bad:
        [facts.save_dir]
        file_system = "overlay"
    Bad:
        [facts.save_dir]
        file_system = "nfs4"
    Good:
        [facts.save_dir]
        file_system = "ext4"
    """
    folder = known(facts.save_dir)
    at = traits_of(run).write_root_field
    move = f"give `{at}` a folder on another disk"
    if folder.file_system in _IN_MEMORY:
        yield Problem(at, f"{folder.existing} is held in memory ({folder.file_system})", fix=move)
    elif folder.file_system in _OBJECT_STORES:
        yield Problem(
            at,
            f"{folder.existing} is a bucket mounted as a folder ({folder.file_system})",
            fix=f"{move}, and copy to the bucket from there",
            why="it can neither append nor rename: checkpoints look complete when they are not",
            severity=Severity.ERROR if traits_of(run).writes_run_directory else None,
        )
    elif folder.file_system in _OF_A_CONTAINER:
        yield Problem(
            at,
            f"{folder.existing} is the container's own layer ({folder.file_system})",
            fix=f"mount a volume, or {move}",
            severity=Severity.NOTE,
        )
    elif folder.file_system.startswith("nfs"):
        yield Problem(
            at,
            f"{folder.existing} is on a network ({folder.file_system})",
            fix="measure its speed: prime-train validate --deep",
            why="every rank writes at once: a slow server delays each save, and an outage stops the run",
            severity=Severity.NOTE,
        )


@facts_rule("DSK004", Severity.WARNING, needs=("save_dir", "disk_speed", "model_folder", "tokenizer_folder"))
def disk_too_slow(run: RunSpec, facts: Facts) -> Problems:
    """Writing a checkpoint should take less time than the limit for a hang.

    a save that lasts longer counts as a hang, and ends the attempt

    For a run.toml it is the supervisor's limit, for prime-rl that of its collectives. Judged only with --deep, which
    writes a file for at most two seconds.

    Source: supervise/core/policy.py (silence beyond slow_phase_limit_s is a hang); prime-rl, dist_timeout_seconds, and
    "Watchdog caught collective operation timeout" after a slow save.

    Bad:
        [model]
        layers = 24
        hidden_size = 1024
        heads = 16
        [facts.disk_speed]
        bytes_per_s = 1000000.0
    Bad (prime-rl 2026-08):
        [facts.disk_speed]
        bytes_per_s = 2000000.0
    Good (prime-rl 2026-08):
        [facts.disk_speed]
        bytes_per_s = 500000000.0
    Good:
        [facts.disk_speed]
        bytes_per_s = 1000000000.0
    """
    speed = known(facts.disk_speed).bytes_per_s
    at, limit_s = traits_of(run).silence_field, silence_limit_s(run)
    decoder = architecture(run, facts) if traits_of(run).has_size_fields else None
    one = _prime_rl_checkpoint_bytes(run) if decoder is None else checkpoint_bytes(decoder)
    if one is None or speed <= 0 or limit_s <= 0:
        return
    needed_s = one / speed
    if needed_s > limit_s:
        wanted_s = round(3 * needed_s)
        yield suggest(
            at,
            f"a checkpoint of {format_bytes(one)} takes {format_seconds(needed_s)} at "
            f"{format_bytes(speed)}/s, and {format_seconds(limit_s)} of silence count as a hang",
            type(limit_s)(wanted_s),
        )
