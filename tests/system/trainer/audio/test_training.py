"""The trainer on clips: it is killed and goes on bit-equal, learns on one and on two ranks, and counts bad clips."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.core.plans import ChangePlan, write_plan
from prime_train.events import ClipsBroken, Evaluated, Measured, Progress, TrainerFailed, TrainerFinished
from prime_train.spec import RunSpec
from prime_train.spec.audio import AudioObjective
from prime_train.spec.clip_size import count_parameters, count_seen, size_of
from prime_train.trainer.attempt import StopFlag
from prime_train.trainer.audio.chirps import write_clips
from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.learning.audio_model import build_audio
from prime_train.trainer.audio.learning.encoder_folder import read_encoder
from prime_train.trainer.audio.learning.micro_batch import draw
from prime_train.trainer.audio.tables import open_clips
from prime_train.trainer.loops import pretrain
from prime_train.trainer.loops.clip_work import ClipRows
from prime_train.trainer.saves.convert_checkpoint import ConversionRequest, convert
from tests.system.trainer.audio.kill_drill import AUDIO, CLIPS, audio_run, losses, train_with_kills
from tests.system.trainer.test_resume import contents, differences
from tests.unit.trainer import tiny

OBJECTIVES: tuple[AudioObjective, ...] = ("supervised", "masked_autoencoder", "lejepa")


def finish(path: Path, run: RunSpec, processes: int = 1) -> Any:
    run_dir = tiny.prepare(path, run)
    code, output = tiny.train(run_dir, processes=processes)
    assert code == 0, output
    return run_dir


def hashes(run: RunSpec, batches: int, rank: int = 0, ranks: int = 1) -> list[str]:
    rows = ClipRows(run, [Path(str(source.path)) for source in run.data.sources], 12, rank, ranks)
    try:
        made = [rows.next_micro_batch() for _ in range(batches)]
    finally:
        rows.close()
    parts = [(one.log_mels, one.labels, *one.drawn) for one in made]
    return [sha256(b"".join(part.numpy().tobytes() for part in each)).hexdigest() for each in parts]


@pytest.mark.timeout(900)  # seven processes one after the other, on a loaded machine
def test_a_run_that_is_killed_again_and_again_has_the_losses_of_one_that_is_not(tmp_path: Path) -> None:
    run = audio_run(tmp_path, max_steps=24)
    straight = finish(tmp_path / "straight", run)
    killed = tiny.prepare(tmp_path / "killed", run)
    train_with_kills(killed, kills=6, seed=3)
    assert losses(killed) == losses(straight)
    assert len(losses(straight)) == 24
    one, other = (contents(each.checkpoint(24), tmp_path / "contents.pt") for each in (straight, killed))
    assert differences(one, other) == []


@pytest.mark.timeout(900)
def test_a_run_on_several_sources_is_killed_and_has_the_same_losses(tmp_path: Path) -> None:
    run = audio_run(tmp_path, max_steps=10)
    more = spec.Source(kind="audio", path=str(write_clips(tmp_path, 6, 0.8, codec="flac", seed=1)))
    run = replace(run, data=replace(run.data, sources=(*run.data.sources, more), sampling_probs=(0.6, 0.4)))
    straight = finish(tmp_path / "straight", run)
    killed = tiny.prepare(tmp_path / "killed", run)
    train_with_kills(killed, kills=2, seed=5)
    assert losses(killed) == losses(straight)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_batches_are_the_same_for_workers_and_ranks(tmp_path: Path, objective: AudioObjective) -> None:
    run = audio_run(tmp_path, 8, replace(AUDIO, objective=objective))
    together = hashes(replace(run, data=replace(run.data, loader_workers=0)), 8)
    assert len(set(together)) == 8
    assert hashes(replace(run, data=replace(run.data, loader_workers=4)), 8) == together
    parts = [hashes(run, 4, rank, 2) for rank in range(2)]
    assert [parts[place % 2][place // 2] for place in range(8)] == together


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_two_ranks_learn_what_one_learns(tmp_path: Path, objective: AudioObjective) -> None:
    run = audio_run(tmp_path, 6, replace(AUDIO, objective=objective))
    alone = losses(finish(tmp_path / "alone", run))
    for name, shards in (("ddp", 1), ("fsdp", 2)):
        parallel = spec.Parallel(processes=2, dp_shard=shards)
        final = spec.Checkpoint(interval_steps=None, final="hf")
        run_dir = finish(tmp_path / name, replace(run, parallel=parallel, checkpoint=final), processes=2)
        assert losses(run_dir) == pytest.approx(alone, rel=2e-4)
        assert read_encoder(run_dir.final).audio == run.audio


def test_a_run_is_measured_shown_and_exported(tmp_path: Path) -> None:
    run = audio_run(tmp_path, 10, checkpoint=spec.Checkpoint(interval_steps=5, final="hf"))
    run_dir = finish(tmp_path / "run", run)
    found = tiny.events(run_dir)
    assert [event.step for event in found if isinstance(event, Evaluated)] == [5, 10]
    names = {(event.name, event.metric) for event in found if isinstance(event, Measured)}
    assert names == {("probe", "accuracy"), ("knn", "accuracy")}
    assert {event.unit for event in found if isinstance(event, Progress)} == {"clips"}
    assert (run_dir.plots / "spectrograms.png").read_bytes().startswith(b"\x89PNG")
    finished = found[-1]
    assert isinstance(finished, TrainerFinished)
    exported = read_encoder(finished.final).state_dict()
    # What `ckpt to-hf` writes from the checkpoint of the same step.
    convert(ConversionRequest(to="hf", run_dir=str(run_dir.path), step=10, output=str(tmp_path / "from-checkpoint")))
    written = read_encoder(tmp_path / "from-checkpoint").state_dict()
    assert all(torch.equal(written[name], exported[name]) for name in exported)
    assert sum(weight.numel() for weight in exported.values()) == count_parameters(AUDIO)


def test_sizes_are_those_of_what_is_drawn() -> None:
    audio, registers = replace(AUDIO, objective="lejepa"), AUDIO.encoder.registers
    views = draw(audio, 1, torch.arange(3).numpy())[0]
    assert views.shape == (3, size_of(audio).sequences, size_of(audio).tokens - registers)
    audio = replace(AUDIO, objective="masked_autoencoder")
    assert size_of(audio) == (1, count_seen(audio) + registers)
    assert size_of(AUDIO) == (1, AUDIO.patches + registers)
    model = build_audio(AUDIO, 12, 1)
    assert sum(weight.numel() for weight in model.encoder.parameters()) == count_parameters(AUDIO)


def test_another_micro_batch_reads_the_same_clips(tmp_path: Path) -> None:
    # Without a limit, because the probe compares the clips of a micro-batch, and its gradient is a part of the norm.
    run = audio_run(tmp_path, 6, optim=spec.Optim(lr=3e-3, clip_norm=None))
    straight = losses(finish(tmp_path / "straight", run))
    run_dir = tiny.prepare(tmp_path / "changed", run)
    changed, config = {"batch.micro_batch": 4}, {"batch.micro_batch": 2}
    write_plan(run_dir.settings, ChangePlan(version=1, values=changed, before=config, config=config))
    code, output = tiny.train(run_dir)
    assert code == 0, output
    assert losses(run_dir) == pytest.approx(straight, rel=1e-5)


# --- clips and labels that cannot be used ------------------------------------------------------------------------


def write_rows(path: Path, source: Path, change: Callable[[int, Any], Any], labels: Any = None) -> Path:
    """The clips of an Arrow file with other bytes: `change` takes the number and the bytes of a row."""
    table = pa.ipc.open_stream(source.read_bytes()).read_all()
    clips = [{"bytes": change(row, clip["bytes"]), "path": None} for row, clip in enumerate(table["audio"].to_pylist())]
    audio = pa.array(clips, type=table.schema.field("audio").type)
    made = pa.table({"audio": audio, "label": table["label"] if labels is None else labels})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, made.schema) as writer:
        writer.write_table(made)
    return path


def on_clips(run: RunSpec, path: Path, **audio: Any) -> RunSpec:
    data = replace(run.data, sources=(spec.Source(kind="audio", path=str(path)),))
    return replace(run, data=data, audio=replace(AUDIO, **audio))


def test_broken_clips_are_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    run = audio_run(tmp_path, 10)
    bad = {3: None, 9: b"", 15: b"no sound"}
    path = Path(str(run.data.sources[0].path))
    broken = write_rows(
        tmp_path / "broken.arrow", path, lambda row, clip: bad.get(row, clip[:200] if row == 20 else clip)
    )
    run_dir = finish(tmp_path / "run", on_clips(run, broken, most_broken=1.0))
    counted = [event for event in tiny.events(run_dir) if isinstance(event, ClipsBroken)]
    assert counted[-1].read == 40
    assert 0 < counted[-1].broken < 20
    assert all("broken.arrow row" in name for name in counted[-1].named)


REFUSED: dict[str, tuple[Callable[[Path, Path], Path], dict[str, Any], str]] = {
    "string labels": (
        lambda folder, clips: write_rows(folder / "a.arrow", clips, lambda _, clip: clip, pa.array(["a"] * CLIPS)),
        {},
        "its column label is string, not int64",
    ),
    "no label": (
        lambda folder, clips: write_rows(
            folder / "a.arrow", clips, lambda _, clip: clip, pa.array([None] * CLIPS, type=pa.int64())
        ),
        {},
        "no clip has a label",
    ),
    "more labels than classes": (lambda _, clips: clips, {"classes": 10}, "the labels go up to 11"),
    "null audio": (
        lambda folder, clips: write_rows(folder / "a.arrow", clips, lambda *_: None),
        {},
        "clips in a row cannot be used; the first: its audio is null",
    ),
    "a broken clip that is not skipped": (
        lambda folder, clips: write_rows(folder / "a.arrow", clips, lambda row, clip: clip if row % 4 else b"x" * 99),
        {"on_broken": "fail"},
        "had a clip that cannot be used",
    ),
    "a file that is cut": (
        lambda folder, clips: _write(folder / "a.arrow", clips.read_bytes()[: clips.stat().st_size // 2]),
        {},
        "it is no whole Arrow file",
    ),
    "another column": (lambda _, clips: clips, {"audio_field": "sound"}, "it has no column sound"),
    "nothing there": (lambda folder, _: folder / "none.arrow", {}, "it does not exist"),
}


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_in_four_parts(tmp_path: Path, name: str) -> None:
    make, settings, what = REFUSED[name]
    run = audio_run(tmp_path, 10)
    run = on_clips(run, make(tmp_path, Path(str(run.data.sources[0].path))), **settings)
    run_dir = tiny.prepare(tmp_path / "run", run)
    with pytest.raises(UserError) as caught:
        pretrain.main(tiny.attempt(run_dir, run), StopFlag(run_dir.stop_request(1)))
    error = caught.value
    assert what in error.what
    assert all((error.where, error.why, error.fix))


def test_one_clip_cannot_be_held_out(tmp_path: Path) -> None:
    run = audio_run(tmp_path, 1)
    table = replace(open_clips(Path(str(run.data.sources[0].path)), Columns()), chosen=torch.arange(1).numpy())
    with pytest.raises(UserError, match="there is one clip"):
        table.hold_out(0.1)


def test_the_held_out_clips_are_in_no_batch(tmp_path: Path) -> None:
    run = audio_run(tmp_path, 1)
    table = open_clips(Path(str(run.data.sources[0].path)), Columns())
    kept, held = table.hold_out(0.2)
    assert (kept.rows, held.rows) == (32, 8)
    content = [sha256(bytes(part.read_clip(row))).digest() for part in (kept, held) for row in range(part.rows)]
    assert sorted(content) == sorted(sha256(bytes(table.read_clip(row))).digest() for row in range(CLIPS))
    assert kept.starts == (0, 32)


def test_without_the_extra_the_run_names_it(tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path / "run", audio_run(tmp_path, 1))
    program = (
        "import sys\nsys.modules['soundfile'] = None\nfrom prime_train.trainer.__main__ import main\n"
        f"sys.exit(main([{str(run_dir.path)!r}, '--attempt', '1']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 5, done.stderr
    (failed,) = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed)]
    assert failed.what == "soundfile is not installed"
    assert "[audio]" in failed.fix
