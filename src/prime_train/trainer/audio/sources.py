"""Finds clips for a run: local files, a dataset on the Hugging Face hub, or chirps. Decodes nothing."""

from __future__ import annotations

from pathlib import Path

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import cache_path
from prime_train.spec import RunSpec, Source
from prime_train.spec.audio import Audio
from prime_train.trainer.audio.chirps import write_clips
from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.log_mel import MelSettings
from prime_train.trainer.audio.tables import ClipTable


def find_clips(run: RunSpec) -> tuple[Path, ...]:
    """The file or folder with the clips of each source, made or downloaded if it is not there. Raises UserError."""
    return tuple(_find_source(number, source) for number, source in enumerate(run.data.sources))


def _find_source(number: int, source: Source) -> Path:
    if source.kind == "chirps":
        # With the number as the seed, because clips that two sources share would be held out and trained on.
        return write_clips(Path(cache_path("chirps")), source.count, seed=number)
    if source.kind != "audio":
        what, why = f'kind = "{source.kind}" has text', "an encoder learns from clips alone"
        raise UserError(what, f"data.sources.{number}", why, 'kind = "audio", or another run for the text')
    if not source.path:
        raise UserError('kind = "audio" has no path', f"data.sources.{number}", "it names the clips", 'path = "clips/"')
    path = Path(source.path).expanduser()
    # A dataset has one slash in its name; any other missing path is mistyped.
    if path.exists() or source.path.count("/") != 1 or source.path.startswith((".", "/", "~")):
        return path / source.subset if source.subset and (path / source.subset).is_dir() else path
    return _download(source)


def _download(source: Source) -> Path:
    """A snapshot with the files for one subset alone, from the cache where that has it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    assert source.path is not None
    wanted = [f"*{source.subset}*.{kind}" for kind in ("parquet", "arrow")] if source.subset else None
    wanted = wanted and [*wanted, f"{source.subset}/*"]
    try:
        found = Path(snapshot_download(source.path, repo_type="dataset", allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        what = f"the dataset cannot be downloaded: {str(error).splitlines()[0][:200]}"
        why = "there is no such file or folder here, so it is searched on the Hugging Face hub"
        fix = "give a local path, or look at the name and at HF_TOKEN"
        raise UserError(what, source.path, why, fix, ExitCode.OUT_OF_REACH) from error
    inside = found / source.subset if source.subset else found
    return inside if inside.is_dir() else found


def mel_of(audio: Audio) -> MelSettings:
    return MelSettings(
        sample_rate=audio.sample_rate, mels=audio.mels, frames=audio.frames, mean=audio.mean, std=audio.std
    )


def columns_of(audio: Audio) -> Columns:
    return Columns(audio=audio.audio_field, label=audio.label_field or None)


def count_classes(audio: Audio, table: ClipTable) -> int:
    """How many classes there are, by the config or by all labels; 0 without labels. Raises UserError."""
    if not audio.label_field:
        return 0
    counts = table.count_labels()
    found = len(counts)
    if not found:
        if audio.objective != "supervised":
            return 0
        why, fix = "a supervised run learns from labels", 'another audio.label_field, or audio.objective = "lejepa"'
        raise UserError("no clip has a label", f'audio.label_field = "{audio.label_field}"', why, fix)
    if audio.classes is not None and found > audio.classes:
        what = f"the labels go up to {found - 1}, and audio.classes is {audio.classes}"
        why = "the last layer has an output for each label from 0 to classes - 1"
        raise UserError(what, "audio.classes", why, f"audio.classes = {found}")
    return audio.classes or found
