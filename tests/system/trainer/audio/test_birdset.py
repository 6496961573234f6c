"""BirdSet on a hub of our own, with the files and columns that it has on huggingface.co: read, trained on, refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prime_train.core.rundir import RunDir
from prime_train.trainer.audio import chirps
from tests.fakes import hub_server
from tests.unit.cli.commands import prime_train

PRESET = Path(__file__).parents[4] / "presets" / "audio-birdset.toml"
PARQUET, ORIGINAL = "samuelstevens/BirdSet", "DBD-research-group/BirdSet"
SPECIES = [f"bird{number:02}" for number in range(12)]
ROWS = 8  # of a shard
# Files as in the commits "Upload dataset" of PARQUET, with fewer shards; columns as in BirdSet.py of ORIGINAL.
TRAIN = [f"XCM/train-{number:05}-of-00003.parquet" for number in range(3)]
OTHERS = ["XCM/valid-00000-of-00001.parquet", "POW/train-00000-of-00001.parquet", "POW/test_5s-00000-of-00001.parquet"]
FEATURES = {
    "audio": {"sampling_rate": 32_000, "decode": False, "_type": "Audio"},
    "filepath": {"dtype": "string", "_type": "Value"},
    "start_time": {"dtype": "float64", "_type": "Value"},
    "ebird_code": {"names": SPECIES, "_type": "ClassLabel"},
    "ebird_code_multilabel": {"feature": {"names": SPECIES, "_type": "ClassLabel"}, "_type": "List"},
    "length": {"dtype": "int64", "_type": "Value"},
    "local_time": {"dtype": "string", "_type": "Value"},
    "genus": {"names": ["one"], "_type": "ClassLabel"},
}


def write_shard(path: Path, labels: Sequence[int | None], seed: int) -> None:
    draw = np.random.default_rng(seed)
    names = [f"XC{seed}{row}.ogg" for row in range(len(labels))]
    contents = [chirps.encode(chirps.make_clip(label or 0, 2.0, 32_000, draw), 32_000, "vorbis") for label in labels]
    clips = [{"bytes": one, "path": name} for one, name in zip(contents, names, strict=True)]
    columns = {
        "audio": pa.array(clips, type=pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "filepath": pa.array(names),
        "start_time": pa.nulls(len(labels), pa.float64()),
        "ebird_code": pa.array(labels, type=pa.int64()),
        "ebird_code_multilabel": pa.array([[label or 0, 11] for label in labels], type=pa.list_(pa.int64())),
        "length": pa.array([2] * len(labels), type=pa.int64()),
        "local_time": pa.array(["08:00"] * len(labels)),
        "genus": pa.array([0] * len(labels), type=pa.int64()),
    }
    described = {b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns).replace_schema_metadata(described), path, row_group_size=4)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    read, original = root / "datasets" / PARQUET, root / "datasets" / ORIGINAL
    for number, name in enumerate(TRAIN):
        write_shard(read / name, [(number * ROWS + row) % 12 for row in range(ROWS)], number)
    for number, name in enumerate(OTHERS):
        write_shard(read / name, [None] * 2, 10 + number)
    original.mkdir(parents=True)
    for name in ("BirdSet.py", "classes.py", "descriptions.py"):  # its clips are archives in the branch `data`
        (original / name).write_text("raise SystemExit('this code was run')\n")
    for folder in (read, original):
        (folder / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
        (folder / ".gitattributes").write_text("*.parquet filter=lfs diff=lfs merge=lfs -text\n")
    return root


@pytest.fixture
def hub(root: Path) -> Iterator[hub_server.Hub]:
    with hub_server.serving(root) as served:
        yield served


def use(hub: hub_server.Hub, folder: Path, *words: str, **environment: str) -> Any:
    caches = {"HF_HOME": str(folder / "home"), "PRIME_TRAIN_CACHE": str(folder / "cache")}
    offline = {"HF_HUB_OFFLINE": ""} | environment
    return prime_train(*words, cwd=folder, HF_ENDPOINT=hub.endpoint, **caches, **offline)


def stored(hub: hub_server.Hub) -> set[str]:
    """The files of PARQUET whose content was asked for."""
    begin = f"/storage/datasets/{PARQUET}/"
    return {path.removeprefix(begin) for method, path, _ in hub.asked if method == "GET" and path.startswith(begin)}


SCAN = ("data", "audio", "scan", PARQUET, "--subset", "XCM", "--label-field", "ebird_code", "--json")


def test_a_scan_reads_the_split_alone_and_again_without_the_hub(hub: hub_server.Hub, tmp_path: Path) -> None:
    done = use(hub, tmp_path, *SCAN, "--decode")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["rows"], found["files"], found["labels"], found["broken"]) == (3 * ROWS, 3, 12, 0)
    assert found["codecs"] == {"OGG/VORBIS": 3 * ROWS}
    assert stored(hub) == set(TRAIN)
    asked = len(hub.asked)
    again = use(hub, tmp_path, *SCAN, HF_HUB_OFFLINE="1")
    assert json.loads(again.stdout)["rows"] == 3 * ROWS
    assert len(hub.asked) == asked


def test_another_split_is_read_by_its_name(hub: hub_server.Hub, tmp_path: Path) -> None:
    words = ("data", "audio", "scan", PARQUET, "--subset", "POW", "--split", "test_5s", "--no-labels", "--json")
    done = use(hub, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 2
    assert stored(hub) == {OTHERS[2]}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((ORIGINAL, "--subset", "XCM"), ("BirdSet.py makes the clips", "no code of a dataset is run", PARQUET)),
        ((PARQUET, "--subset", "XCL"), ("it has no folder XCL", "it has POW, XCM")),
        ((PARQUET,), ("it has 2 subsets", 'subset = "POW"')),
        ((PARQUET, "--subset", "XCM", "--split", "test"), ("it has no split test", "train, valid")),
        (("lab/none",), ("cannot be downloaded", "searched on the Hugging Face hub", "HF_TOKEN")),
    ],
)
def test_what_is_not_there_has_four_parts(
    words: tuple[str, ...], parts: tuple[str, ...], hub: hub_server.Hub, tmp_path: Path
) -> None:
    done = use(hub, tmp_path, "data", "audio", "scan", *words, "--label-field", "ebird_code")
    assert done.returncode in (2, 4), done.stdout
    assert "Traceback" not in done.stderr
    for part in (" what ", " why ", " fix ", *parts):
        assert part in " ".join(done.stderr.split()), done.stderr
    assert not stored(hub)


@pytest.mark.timeout(600)  # a start of a supervisor and a trainer, on a loaded machine
def test_the_preset_trains_on_what_the_hub_has(hub: hub_server.Hub, tmp_path: Path) -> None:
    smaller = {
        "run.max_steps": 4,
        "audio.clip_s": 1.0,
        "audio.frames": 112,
        "audio.threads": 1,
        "audio.encoder.layers": 1,
        "audio.encoder.width": 32,
        "audio.encoder.heads": 2,
        "data.loader_workers": 1,
        "batch.micro_batch": 4,
        "batch.global_batch": 4,
        "parallel.processes": 1,
        "schedule.warmup_steps": 1,
        "eval.held_out_ratio": 0.2,
    }
    changes = [word for key, value in smaller.items() for word in ("--set", f"{key}={value}")]
    done = use(hub, tmp_path, "run", str(PRESET), *changes)
    assert done.returncode == 0, done.stderr
    assert stored(hub) == set(TRAIN)
    run_dir = RunDir(tmp_path / "runs" / "audio-birdset")
    assert len(run_dir.metrics.read_text().splitlines()) == 4
    assert (run_dir.final / "encoder.safetensors").is_file()
    assert len(list((tmp_path / "cache" / "audio").glob("*.arrow"))) == len(TRAIN)
