"""Finds clips for a run: local files, a dataset on the Hugging Face hub, or chirps. Decodes nothing."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import cache_path
from prime_train.core.units import counted
from prime_train.spec import RunSpec, Source
from prime_train.spec.audio import Audio
from prime_train.trainer.audio.chirps import write_clips
from prime_train.trainer.audio.clip_files import ARROW, PARQUET, Columns
from prime_train.trainer.audio.clip_folders import CLIPS
from prime_train.trainer.audio.log_mel import MelSettings
from prime_train.trainer.audio.splits import choose_split, pick_split
from prime_train.trainer.audio.tables import ClipTable

_ARCHIVES = (".tar", ".gz", ".tgz", ".zip")
# Datasets whose files are archives and a script, and who has the same clips as parquet.
_COPIES = {"DBD-research-group/BirdSet": "samuelstevens/BirdSet"}


def find_clips(run: RunSpec) -> tuple[Path, ...]:
    """The files with the clips of each source, made or downloaded if they are not there. Raises UserError."""
    return tuple(_find_source(number, source) for number, source in enumerate(run.data.sources))


def _find_source(number: int, source: Source) -> Path:
    if source.kind == "chirps":
        # With the number as the seed, because clips that two sources share would be held out and trained on.
        return write_clips(Path(cache_path("chirps")), source.count, seed=number)
    if source.kind != "audio":
        what, why = f'kind = "{source.kind}" has text', "an encoder learns from clips alone"
        raise UserError(what, f"data.sources.{number}", why, 'kind = "audio", or another run for the text')
    return find_files(source, f"data.sources.{number}")


def find_files(source: Source, where: str) -> Path:
    """The file, folder or pattern with the clips of a source, downloaded if they are not there. Raises UserError."""
    if not source.path:
        raise UserError('kind = "audio" has no path', where, "it names the clips", 'path = "clips/"')
    path = Path(source.path).expanduser()
    # A dataset has one slash in its name; any other missing path is mistyped.
    is_path = source.path.count("/") != 1 or source.path.startswith((".", "/", "~"))
    if not (is_path or path.exists() or glob.has_magic(source.path) or path.suffix in (ARROW, PARQUET, *CLIPS)):
        path = _download(source)
    return choose_split(_find_subset(path, source.subset), source.split)


def _find_subset(path: Path, subset: str | None) -> Path:
    """The folder of a subset: below the path, or the path itself. Raises UserError where there is none."""
    if not subset or not path.is_dir() or subset in path.parts:
        return path
    folders = (path / subset, *sorted(path.glob(f"*/{glob.escape(subset)}")))
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        why = "a subset is a folder with its name"
        raise UserError(f"it has no folder {subset}", str(path), why, "name the folder of the clips, and no subset")
    return found


def _download(source: Source) -> Path:
    """A snapshot with the files for one subset and split alone, from the cache where that has it."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    assert source.path is not None
    # The base class of the HTTP library that this version of huggingface_hub uses: requests, httpx or httpx2.
    transport: type[Exception] = HfHubHTTPError.__mro__[1]
    try:
        wanted = [
            glob.escape(name) for name in _pick(HfApi().list_repo_files(source.path, repo_type="dataset"), source)
        ]
    except (transport, OSError, ValueError):
        wanted = _list_patterns(source)  # the snapshot is in the cache, or the next request has the same fault
    try:
        return Path(snapshot_download(source.path, repo_type="dataset", allow_patterns=wanted))
    except (transport, OSError, ValueError) as error:
        what = f"the dataset cannot be downloaded: {str(error).splitlines()[0][:200]}"
        why = "there is no such file or folder here, so it is searched on the Hugging Face hub"
        fix = "give a local path, or look at the name and at HF_TOKEN"
        raise UserError(what, source.path, why, fix, ExitCode.OUT_OF_REACH) from error


def _pick(names: Sequence[str], source: Source) -> list[str]:
    """The tables of the subset and the split among all files of a dataset. Raises UserError where it has none."""
    assert source.path is not None
    tables = [name for name in names if name.endswith((ARROW, PARQUET))]
    inside = [name for name in tables if not source.subset or source.subset in PurePosixPath(name).parts[:-1]]
    folders = sorted({name.partition("/")[0] for name in tables if "/" in name})
    if inside and (source.subset or len(folders) <= 1):
        return pick_split(inside, source.split, source.path)
    if folders:
        what = f"it has no folder {source.subset}" if source.subset else f"it has {len(folders)} subsets"
        listed = ", ".join(folders[:20])
        fix = f'name one of its folders, for example subset = "{folders[0]}"; it has {listed}'
        raise UserError(what, source.path, "a subset numbers its labels by itself", fix, ExitCode.OUT_OF_REACH)
    raise _refuse_files(names, source)


def _refuse_files(names: Sequence[str], source: Source) -> UserError:
    """The error for a dataset without tables."""
    assert source.path is not None
    script = next((name for name in names if name.endswith(".py") and "/" not in name), None)
    archives = [name for name in names if name.endswith(_ARCHIVES)]
    why, fix = "clips are read from such tables", "give a local folder with the clips, and their labels.csv"
    if script is not None:
        why = f"its script {script} makes the clips, and no code of a dataset is run"
        subset = source.subset or "SUBSET"
        load = f'load_dataset("{source.path}", "{subset}", trust_remote_code=True)'
        fix = f'write a copy as parquet, with a release of `datasets` below 4: {load}.push_to_hub("COPY")'
    elif archives:
        why = f"its {counted(len(archives), 'archive')} would have to be unpacked"
    if source.path in _COPIES:
        fix = f'path = "{_COPIES[source.path]}", which has the same clips as parquet'
    return UserError(f"it has no {ARROW} or {PARQUET} file", source.path, why, fix, ExitCode.OUT_OF_REACH)


def _list_patterns(source: Source) -> list[str]:
    """Patterns for the shards of the subset and the split, where the files of the dataset are not known."""
    split, folder = glob.escape(source.split), f"{glob.escape(source.subset)}/" if source.subset else ""
    shards = (f"{split}-*-of-*", f"*/{split}-*-of-*", f"*-{split}-*-of-*")
    return [f"{above}{folder}{shard}" for above in ("", "*/") for shard in shards]


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
