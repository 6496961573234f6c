"""Which files below a folder belong to a split."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.trainer.audio.clip_files import list_files
from prime_train.trainer.audio.splits import choose_split, pick_split

HUB = ["XCM/train-00000-of-00002.parquet", "XCM/train-00001-of-00002.parquet", "XCM/valid-00000-of-00001.parquet"]
CACHE = [
    "bird_set-train-00000-of-00002.arrow",
    "bird_set-train-00001-of-00002.arrow",
    "bird_set-test-00000-of-00001.arrow",
]


def make(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("rows")
    return folder


def names_below(path: Path, folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in list_files(path)]


@pytest.mark.parametrize("names", [HUB, CACHE])
def test_shards_of_a_split_are_found_by_their_names(names: list[str], tmp_path: Path) -> None:
    folder = make(tmp_path / "a [b]", [*names, "XCM/metadata.parquet"])
    assert names_below(choose_split(folder, "train"), folder) == names[:2]
    last = names[2].rpartition("/")[2].split("-")[-4]
    assert names_below(choose_split(folder, last), folder) == names[2:]
    with pytest.raises(UserError, match="no split dev") as caught:
        choose_split(folder, "dev")
    assert "train" in caught.value.fix


@pytest.mark.parametrize(
    "names",
    [
        ["a.arrow", "b.arrow"],
        ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"],
        ["shard-00000-of-00002.arrow", "shard-00001-of-00002.arrow"],
        ["test-00000-of-00001-0123456789abcdef.parquet"],
        ["train/a.wav", "test/b.wav"],
    ],
)
def test_names_without_two_splits_are_all_read(names: list[str], tmp_path: Path) -> None:
    assert choose_split(make(tmp_path, names), "train") == tmp_path


def test_a_saved_dataset_has_a_folder_for_each_split(tmp_path: Path) -> None:
    folder = make(tmp_path, ["dataset_dict.json", "train/data-00000-of-00001.arrow", "valid/data-00000-of-00001.arrow"])
    assert choose_split(folder, "valid") == folder / "valid"
    with pytest.raises(UserError, match="no split test"):
        choose_split(folder, "test")


def test_a_file_and_a_pattern_stand_for_themselves(tmp_path: Path) -> None:
    folder = make(tmp_path, HUB)
    for path in (folder / HUB[2], folder / "XCM" / "valid-*"):
        assert choose_split(path, "train") == path
    assert names_below(folder / "XCM" / "valid-*", folder) == HUB[2:]
    with pytest.raises(UserError, match="no file has such a name"):
        list_files(folder / "*.arrow")


SPLITS = st.sampled_from(["train", "valid", "test_5s", "v1.dev"])


@given(st.dictionaries(SPLITS, st.integers(1, 3), min_size=2), st.sampled_from(["", "XCM/", "bird_set-", "a/b-c-"]))
def test_the_splits_are_a_partition(counts: dict[str, int], above: str) -> None:
    names = [f"{above}{split}-{at:05}-of-{count:05}.arrow" for split, count in counts.items() for at in range(count)]
    picked = {split: pick_split(names, split, "x") for split in counts}
    assert {split: len(found) for split, found in picked.items()} == counts
    assert sorted(name for found in picked.values() for name in found) == sorted(names)
