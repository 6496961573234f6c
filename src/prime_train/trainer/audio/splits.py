"""Chooses the files of one split, by the names that Hugging Face's `datasets` gives them. Opens none."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from prime_train.core.errors import UserError
from prime_train.trainer.audio.clip_files import ARROW, PARQUET, list_files

# "train-00000-of-00351.parquet" on the hub, "bird_set-train-00000-of-00185.arrow" in the cache.
_SHARD = re.compile(r"(?P<set>.+-)?(?P<split>\w+(?:\.\w+)*)-\d{5,}-of-\d{5,}(?:-[0-9a-f]{16})?\.(?:arrow|parquet)")
_NO_SPLIT = "data"  # Dataset.save_to_disk names every split so
_SAVED = "dataset_dict.json"  # DatasetDict.save_to_disk: a folder for each split
_NAMED = 20


def pick_split(names: Sequence[str], split: str, where: str) -> list[str]:
    """Those of the files that are of a split; all, where the names have no two splits.

    Raises UserError for a split that none of them has.
    """
    found = {name: shard["split"] for name in names if (shard := _SHARD.fullmatch(PurePosixPath(name).name))}
    splits = set(found.values()) - {_NO_SPLIT}
    if len(splits) <= 1:
        return list(names)
    if split not in splits:
        raise _refuse_split(splits, split, where)
    return [name for name in names if found.get(name) == split]


def choose_split(path: Path, split: str) -> Path:
    """The path itself, or one that stands for the files of a split below it: a folder, or a pattern.

    Raises UserError for a split that is not there.
    """
    if not path.is_dir():
        return path
    if (path / _SAVED).is_file():
        folders = {one.name for one in path.iterdir() if one.is_dir()}
        if split not in folders:
            raise _refuse_split(folders, split, str(path))
        return path / split
    tables = [str(file.relative_to(path)) for file in list_files(path) if file.suffix in (ARROW, PARQUET)]
    try:
        picked = pick_split(tables, split, str(path))
    except UserError as error:
        raise UserError(error.what, error.where, error.why, f"{error.fix}; {path}/* stands for all") from None
    if picked == tables:
        return path
    own_name = all(PurePosixPath(name).name.startswith(f"{split}-") for name in picked)
    return Path(glob.escape(str(path)), "**", f"{split}-*-of-*" if own_name else f"*-{split}-*-of-*")


def _refuse_split(splits: set[str], split: str, where: str) -> UserError:
    listed = ", ".join(sorted(splits)[:_NAMED])
    why = "a run reads one split, because another one is for tests"
    return UserError(f"it has no split {split}", where, why, f"name one of its splits: {listed}")
