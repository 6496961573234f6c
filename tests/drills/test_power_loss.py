"""The power is cut at every moment of a run: no checkpoint is called complete and is not, and none is lost."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.checkpoints.packing import packing_plan
from prime_train.core.rundir import RunDir
from tests.drills import power_loss, power_program
from tests.unit.trainer import tiny

_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parents[1]
LAST = 12
Verdict = Literal["incomplete", "complete", "packed"]
Hashes = Mapping[str, str]  # of the tensors of a checkpoint, by file

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


class Recording(NamedTuple):
    """A run that was recorded by power_loss.c."""

    run_dir: RunDir
    log: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process is recorded."""
        library = self.log / "power_loss.so"
        if not library.exists():
            source = _HERE / "power_loss.c"
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        return {"LD_PRELOAD": str(library), "POWER_ROOT": str(self.run_dir.path), "POWER_LOG": str(self.log)}

    @property
    def position(self) -> int:
        return (self.log / "log").stat().st_size


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    (tmp_path / "log").mkdir()
    (tmp_path / "run").mkdir()
    return Recording(RunDir(tmp_path / "run"), tmp_path / "log")


def read_hashes(folder: Path) -> Hashes:
    """By the manifest, and without `.metadata`, which has a random number."""
    files = json.loads((folder / layout.MANIFEST).read_text(encoding="utf-8"))["files"]
    return {name: entry["sha256"] for name, entry in files.items() if name.endswith(".distcp")}


def judge(files: power_loss.State, origin: Path, recording: Recording, expected: Hashes) -> tuple[Verdict, str]:
    """What the project's own judge makes of a folder after the cut, and what is wrong with that."""
    folder = recording.log / "judged" / origin.name
    power_loss.write(files, recording.log, origin, folder)
    try:
        if problem := layout.problem(folder):
            return "incomplete", problem
        wrong = layout.problem(folder, on_read=lambda _: None)
        if not wrong and read_hashes(folder) != expected:
            wrong = "its tensors are not those of the uninterrupted run"
        return "packed" if packing_plan.is_packed(folder) else "complete", wrong
    finally:
        shutil.rmtree(folder)


def split(state: power_loss.State, checkpoints: Path) -> Iterator[tuple[Path, power_loss.State]]:
    """The step folders of a state."""
    folders: dict[str, power_loss.State] = {}
    for path, kept in state.items():
        name, _, rest = path.removeprefix(f"{checkpoints}/").partition("/")
        if name.startswith("step_") and rest:
            folders.setdefault(name, {})[path] = kept
    for name, files in folders.items():
        yield checkpoints / name, files


class Replayed(NamedTuple):
    prefixes: int
    packed: int  # different folders that were judged complete and are packed
    newest: dict[str, int]  # the newest complete step at the end, by kind of state


def replay(recording: Recording, expected: Mapping[str, Hashes], stop: int) -> Replayed:
    """Judge the disk after each prefix. Before the position `stop` of the log, the newest step never becomes older."""
    judged: dict[object, tuple[Verdict, str]] = {}
    newest = {"strict": 0, "short": 0, "padded": 0}
    prefixes = 0
    for taken, kind, state in power_loss.states(recording.run_dir.path, recording.log):
        prefixes += 1
        complete = 0
        for folder, files in split(state, recording.run_dir.checkpoints):
            key = (folder, tuple(sorted(files.items())))
            if key not in judged:
                judged[key] = judge(files, folder, recording, expected[folder.name])
            verdict, wrong = judged[key]
            if verdict != "incomplete":
                assert not wrong, f"{kind} after {taken.what} of {taken.path}: {folder.name}: {wrong}"
                complete = max(complete, int(folder.name.removeprefix("step_")))
        if int(taken.number) < stop:
            assert complete >= newest[kind], f"{kind} after {taken.what} of {taken.path}: step {newest[kind]} is lost"
            newest[kind] = complete
    return Replayed(prefixes, sum(verdict == "packed" for verdict, _ in judged.values()), newest)


@needs_compiler
def test_no_cut_beside_saves_and_packing_leaves_a_checkpoint_that_only_looks_complete(recording: Recording) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.drills.power_program",
        "alone",
        str(recording.run_dir.checkpoints),
    ]
    subprocess.run(command, cwd=_REPOSITORY, env=os.environ | recording.environment, check=True)
    expected: dict[str, Hashes] = {}
    for step in power_program.STEPS:
        parts = {"__0_0.distcp": power_program.weights(step), "part/__1_0.distcp": power_program.weights(-step)[:1000]}
        expected[f"step_{step}"] = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
    found = replay(recording, expected, recording.position)
    assert found.prefixes >= 500
    assert found.packed > 10
    assert found.newest == dict.fromkeys(found.newest, power_program.STEPS[-1])


@needs_compiler
def test_no_cut_of_a_training_leaves_a_checkpoint_that_only_looks_complete(
    recording: Recording, tmp_path: Path
) -> None:
    """It saves, packs, deletes, and resumes from a packed checkpoint."""
    texts = tiny.write_texts(tmp_path / "texts")
    run = tiny.run_spec(texts, checkpoint=spec.Checkpoint(interval_steps=2, keep_last=3))
    run = replace(run, run=replace(run.run, max_steps=LAST), eval=replace(run.eval, interval_steps=None, prompts=()))
    cache = {"PRIME_TRAIN_CACHE": str(tmp_path / "cache")}
    everything = replace(run, checkpoint=replace(run.checkpoint, keep_every_steps=2))
    straight = tiny.prepare(tmp_path / "straight", everything)
    code, output = tiny.train(straight, environment=cache)
    assert code == 0, output
    expected = {found.path.name: read_hashes(found.path) for found in layout.scan(straight.checkpoints, hashes=True)}

    run_dir, environment = tiny.prepare(recording.run_dir.path, run), recording.environment | cache
    ended = tmp_path / "ended"
    command = [
        sys.executable,
        "-m",
        "tests.drills.power_program",
        "beside",
        str(run_dir.checkpoints),
        str(ended),
    ]
    packing = subprocess.Popen(command, cwd=_REPOSITORY, env=os.environ | environment)
    try:
        code, output = tiny.train(run_dir, environment=environment)
        assert code == 0, output
        stop = recording.position
        ended.touch()
        assert packing.wait(tiny.DEADLINE_S) == 0
    finally:
        packing.kill()
        packing.wait()
    code, output = tiny.train(run_dir, number=2, resume_step=LAST - 4, environment=environment)
    assert code == 0, output

    found = replay(recording, expected, stop)
    assert found.prefixes >= 500
    assert found.packed > 10
    assert found.newest == dict.fromkeys(found.newest, LAST)
