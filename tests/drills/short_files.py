"""Writes small files of many kinds on a disk of short writes, each once without room, and checks what is there then.

short_files.py FOLDER: with short_writes.c preloaded and SHORT_BELOW=FOLDER. Prints the problems of each kind as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from prime_train.backups.source import Hashes, Seen
from prime_train.bus.base import BusError
from prime_train.bus.local import LocalBus
from prime_train.bus.spool import Spool
from prime_train.checkpoints import in_use
from prime_train.checkpoints.packing import foreign, foreign_archive
from prime_train.cli.config import saved
from prime_train.control.access import load_tokens
from prime_train.control.index import Index, IndexedRun
from prime_train.core.errors import UserError
from prime_train.core.plans import ChangePlan, drop_plan, list_versions, read_plan, write_plan
from prime_train.core.process_id import identify
from prime_train.core.rundir import RunDir, append_line
from prime_train.events import EventLog, Phase
from prime_train.supervise.core import journal
from prime_train.supervise.processes.requests import SETTINGS_REQUESTED, Request, RequestReader, write_request
from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.tables import open_clips
from tests.unit.checkpoints.packing import test_foreign as packing

Result = TypeVar("Result")
ROWS = 40


def again(act: Callable[..., Result], *given: Any) -> Result:
    """What an act returns that a full disk may refuse once. A second refusal is a problem."""
    try:
        return act(*given)
    except (OSError, UserError, BusError):
        return act(*given)


def write_plans(folder: Path) -> None:
    for version in range(1, ROWS):
        again(
            lambda version=version: write_plan(
                folder, ChangePlan(version=version, values={"optim.lr": 0.1 / version}, before={})
            )
        )
    again(drop_plan, folder, 3)
    assert list_versions(folder) == list(range(1, ROWS))
    assert [read_plan(folder, n).values.get("optim.lr") for n in (1, 2)] == [0.1, 0.05]
    assert read_plan(folder, 3).values == {}


def write_requests(folder: Path) -> None:
    run_dir, mine = RunDir(folder), identify(os.getpid())
    assert mine is not None
    run_dir.requests(1).mkdir(parents=True)
    reader, found = RequestReader(run_dir, mine), []
    for number in range(ROWS):
        body = {"n": number, "text": "x" * 2000}
        again(write_request, run_dir.requests(1), SETTINGS_REQUESTED, mine, f"id-{number}", body)
        found += list(reader.take(1))
    assert [each.body["n"] for each in found if isinstance(each, Request)] == list(range(ROWS))
    assert len(found) == ROWS


def use_bus(folder: Path) -> None:
    bus = LocalBus(folder)
    for number in range(ROWS):
        again(bus.publish, "pt.m.r.a.ev", {"n": number, "x": "y" * 500}, f"id-{number}")
    subscription = bus.subscribe("pt.*.r.*.ev", "reader")
    found = []
    while messages := subscription.take(0.2):
        found += [message.body["n"] for message in messages]
        again(subscription.acknowledge)
    assert found == list(range(ROWS)), found
    assert LocalBus(folder).subscribe("pt.*.r.*.ev", "reader").take(0.1) == []


def use_keys(folder: Path) -> None:
    values = LocalBus(folder).kv("machines")
    for number in range(ROWS):
        again(values.put, f"m{number % 5}", {"n": number})
    entries = values.list_entries()
    assert sorted(entry.value["n"] for entry in entries if entry.value) == list(range(ROWS - 5, ROWS))
    assert values.count() >= max(entry.revision for entry in entries)


def use_spool(folder: Path) -> None:
    log = EventLog(folder / "events", "supervisor")
    sent: list[str] = []
    spool = Spool(folder / "events", folder / "place.json")
    for number in range(ROWS):
        again(log.append, Phase(1, "train", f"n{number}"))
        while (batch := spool.next_batch()) is not None:
            sent += batch.lines
            spool.acknowledge()
        if number % 7 == 0:  # an agent that starts again
            spool = Spool(folder / "events", folder / "place.json")
    details = [json.loads(line)["detail"] for line in sent]
    assert set(details) == {f"n{number}" for number in range(ROWS)}, details
    assert len(details) <= 2 * ROWS


def keep_snapshot(folder: Path) -> None:
    run_dir = RunDir(folder)
    log = EventLog(run_dir.events, "supervisor")
    for number in range(ROWS):
        again(log.append, Phase(1, "train", f"n{number}" * 100))
    state, follower = journal._load(run_dir)
    with suppress(OSError):
        journal.save(run_dir, state, follower)
    plain = journal.read_state(run_dir)
    journal.save(run_dir, *journal._load(run_dir))
    assert journal.read_state(run_dir) == plain


def write_metrics(folder: Path) -> None:
    folder.mkdir()
    for number in range(ROWS):
        with suppress(OSError):
            append_line(folder / "metrics.jsonl", json.dumps({"step": number, "text": "z" * 300}))
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) >= ROWS - 1, steps
    assert steps == sorted(set(steps)), steps


def write_hashes(folder: Path) -> None:
    folder.mkdir()
    (folder / "data").write_bytes(b"d" * 10_000)
    status = (folder / "data").stat()
    seen = Seen(status.st_size, status.st_mtime_ns, status.st_ino)
    hashes = Hashes(folder / "kept" / "hashes.json")
    first = hashes.of(folder / "data", seen)
    again(hashes.keep)
    assert Hashes(folder / "kept" / "hashes.json").of(folder / "data", seen) == first


def pack_and_unpack(folder: Path) -> None:
    folder.mkdir()
    places = packing.write_steps(folder, "hf")
    before = packing.describe(folder)

    def pack() -> None:
        foreign_archive.finish_moves(places)  # as each command does first
        for one in packing.free(places):
            foreign_archive.pack(places, one, sizes=packing.SMALL)

    again(pack)
    assert [one.step for one in foreign.list_packed(places)] == [20, 10]
    assert all(one.complete for one in foreign.list_packed(places, hashes=True))
    for step in (10, 20):
        again(foreign_archive.unpack, places, step)
    assert packing.describe(folder) == before


def mark_in_use(folder: Path) -> None:
    folder.mkdir()

    def mark() -> None:
        with in_use.using(folder):
            assert "process" in in_use.marked_by(folder)

    again(mark)
    assert list(folder.iterdir()) == []


def save_configs(folder: Path) -> None:
    os.environ["XDG_DATA_HOME"] = str(folder)
    for number in range(5):
        again(saved.save, "a", "run.toml", f"text = {number}\n" * 100, "")
    assert [saved.read("a", number).text for number in saved.list_numbers("a")] == [
        f"text = {number}\n" * 100 for number in range(5)
    ]


def make_tokens(folder: Path) -> None:
    first = again(lambda: load_tokens(folder))
    assert load_tokens(folder) == first


def keep_index(folder: Path) -> None:
    folder.mkdir()
    index = again(lambda: Index(folder / "index.sqlite"))
    for number in range(ROWS):
        index.keep({f"r{number}": IndexedRun("f", {"n": number, "x": "y" * 3000}, [])})
    index.close()
    found = Index(folder / "index.sqlite").load()
    assert len(found) >= ROWS - 1, len(found)
    assert all(run.row["n"] == int(name[1:]) for name, run in found.items())


def copy_parquet(folder: Path) -> None:
    folder.mkdir()
    os.environ["PRIME_TRAIN_CACHE"] = str(folder / "cache")
    clips = [{"bytes": np.full(3000, number, np.uint8).tobytes(), "path": None} for number in range(ROWS)]
    again(lambda: pq.write_table(pa.table({"audio": clips, "label": list(range(ROWS))}), folder / "a.parquet"))
    table = again(lambda: open_clips(folder / "a.parquet", Columns()))
    assert table.rows == ROWS
    assert [bytes(table.read_clip(row))[:1] for row in (0, ROWS - 1)] == [b"\0", bytes([ROWS - 1])]


# What is written, and a part of the path of the file that finds no room once.
KINDS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "plans": (write_plans, (".json",)),
    "requests": (write_requests, ("requests/",)),
    "bus": (use_bus, ("kept/0", "cursors/")),
    "keys": (use_keys, ("values/", "/.revision")),
    "spool": (use_spool, ("events/", "place.json")),
    "snapshot": (keep_snapshot, ("snapshot",)),
    "metrics": (write_metrics, ("metrics",)),
    "hashes": (write_hashes, ("kept/",)),
    "packing": (pack_and_unpack, ("COMPLETE.json", "packed-0/step_10/checkpoint", "model.safetensors.planes")),
    "mark": (mark_in_use, ("#",)),
    "configs": (save_configs, ("configs",)),
    "tokens": (make_tokens, ("token",)),
    "index": (keep_index, ("index.sqlite", "-wal")),
    "parquet": (copy_parquet, (".arrow", ".parquet")),
}


def main() -> None:
    torch.set_num_threads(1)
    below, problems = Path(sys.argv[1]), {}
    for kind, (act, parts) in KINDS.items():
        for number, part in enumerate(("", *parts)):
            os.environ["SHORT_FULL"], os.environ["SHORT_DONE"] = part, str(below.parent / f"{kind}-{number}")
            try:
                act(below / f"{kind}-{number}")
            except BaseException:
                problems[f"{kind} {part}"] = traceback.format_exc()
    print(json.dumps(problems, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
