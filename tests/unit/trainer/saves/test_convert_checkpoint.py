"""A checkpoint becomes the folder that its run exports, whatever its form, or the command is refused and leaves
nothing."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from prime_train import spec
from prime_train.checkpoints import in_use, layout
from prime_train.checkpoints.packing import archive
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.spec.rl import Adapter
from prime_train.trainer.attempt import read_run
from prime_train.trainer.build import build_model, keep_tokenizer, load_config, load_run_tokenizer
from prime_train.trainer.loops.step import Training, adamw, train_step
from prime_train.trainer.parallel import World
from prime_train.trainer.saves import export
from prime_train.trainer.saves.checkpoint import Checkpointer, TrainPosition
from prime_train.trainer.saves.convert_checkpoint import ConversionRequest, convert
from tests.system.checkpoints.test_archive import SMALL, content
from tests.system.trainer.test_hf import transformers_loads
from tests.unit.trainer import tiny

ALONE = World(rank=0, size=1)
STEP = 3


def saved(root: Path, run: RunSpec) -> tuple[RunDir, Training]:
    """A run with a checkpoint after one step, and what it trained."""
    run_dir = tiny.prepare(root, run)
    attempt = tiny.attempt(run_dir, run)
    tokenizer = load_run_tokenizer(run, run_dir)
    keep_tokenizer(attempt, tokenizer)
    model = build_model(run, load_config(run, tokenizer), tiny.CPU, resumes=False)
    training = Training(model, adamw(model, run.optim), ALONE, tiny.CPU, None)
    train_step(training, [tiny.batch(1)], lr=1e-2)
    saving = Checkpointer(attempt, ALONE, tiny.CPU.torch)
    saving.save(training.model, training.optimizer, TrainPosition(STEP, 28, {"buffer": 1}))
    saving.finish()
    return run_dir, training


def own_export(run_dir: RunDir, training: Training) -> dict[str, bytes]:
    """The files of the run's own export."""
    run = read_run(run_dir)
    tokenizer = load_run_tokenizer(run, run_dir)
    return content(export.export(tiny.attempt(run_dir, run), training, load_config(run, tokenizer), tokenizer))


@pytest.fixture(scope="module")
def run_of(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, Training]:
    return saved(tmp_path_factory.mktemp("saved") / "run", tiny.run_spec(texts))


@pytest.fixture
def run_dir(run_of: tuple[RunDir, Training], tmp_path: Path) -> RunDir:
    """A copy of the run, to change."""
    return RunDir(Path(shutil.copytree(run_of[0].path, tmp_path / "copy")))


def request(run_dir: RunDir, output: Path, **options: Any) -> ConversionRequest:
    values: dict[str, Any] = {"to": "hf", "run_dir": str(run_dir.path), "step": STEP, "output": str(output)}
    return ConversionRequest(**values | options)


@pytest.mark.parametrize("packed", [False, True])
def test_the_folder_is_that_of_the_runs_own_export(
    run_of: tuple[RunDir, Training], run_dir: RunDir, tmp_path: Path, packed: bool
) -> None:
    folder = run_dir.checkpoint(STEP)
    if packed:
        archive.compress(folder, SMALL)
        assert any(entry.segments for entry in layout.entries(folder))
    before = content(folder)
    result = convert(request(run_dir, tmp_path / "out" / "hf"))
    assert content(tmp_path / "out" / "hf") == own_export(*run_of)
    assert result["files"] == ["model.safetensors"]
    assert content(folder) == before
    assert os.listdir(tmp_path / "out") == ["hf"]


def test_rows_that_no_token_has_are_left_out(texts: Path, tmp_path: Path) -> None:
    base = tiny.run_spec(texts)
    run_dir, training = saved(tmp_path / "run", replace(base, model=replace(base.model, pad_vocab=True)))
    convert(request(run_dir, tmp_path / "hf"))
    assert content(tmp_path / "hf") == own_export(run_dir, training)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    rows = load_file(tmp_path / "hf" / "model.safetensors")["model.embed_tokens.weight"]
    assert len(training.model.state_dict()["embedding.weight"]) > len(rows) == config["vocab_size"]


def test_transformers_continues_a_text_with_the_same_tokens(run_of: tuple[RunDir, Training], tmp_path: Path) -> None:
    result = convert(request(run_of[0], tmp_path / "hf", max_shard_bytes=20_000))
    assert len(result["files"]) > 1
    theirs, ours = transformers_loads(tmp_path / "hf"), run_of[1].model
    tokens = [5, 6, 7]
    with torch.no_grad():
        for _ in range(12):
            positions = torch.arange(len(tokens)).unsqueeze(0)
            tokens.append(int(ours(torch.tensor([tokens]), positions, None)[0, -1].argmax()))
        started = torch.tensor([tokens[:3]])
        for _ in range(12):
            last = theirs(started).logits[0, -1].argmax().view(1, 1)
            started = torch.cat((started, last), 1)
    assert started[0].tolist() == tokens


def test_bf16_halves_the_weights(run_of: tuple[RunDir, Training], tmp_path: Path) -> None:
    convert(request(run_of[0], tmp_path / "hf", dtype="bf16"))
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    expected = run_of[1].model.state_dict()["norm.weight"]
    assert torch.equal(weights["model.norm.weight"], expected.to(torch.bfloat16))
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_run_that_exports_bf16_is_exported_so_by_default(texts: Path, tmp_path: Path) -> None:
    run = tiny.run_spec(texts, checkpoint=spec.Checkpoint(export_dtype="bf16"))
    run_dir, training = saved(tmp_path / "run", run)
    convert(request(run_dir, tmp_path / "hf"))
    assert content(tmp_path / "hf") == own_export(run_dir, training)
    convert(request(run_dir, tmp_path / "fp32", dtype="fp32"))
    sizes = [len(content(tmp_path / name)["model.safetensors"]) for name in ("hf", "fp32")]
    assert sizes[1] > 1.9 * sizes[0]


def test_a_model_from_a_folder_keeps_its_context_and_generation_config(
    run_of: tuple[RunDir, Training], texts: Path, tmp_path: Path
) -> None:
    convert(request(run_of[0], tmp_path / "base"))
    raw = json.loads((tmp_path / "base" / "config.json").read_text())
    (tmp_path / "base" / "config.json").write_text(json.dumps(raw | {"max_position_embeddings": 4096}))
    (tmp_path / "base" / "generation_config.json").write_text('{"eos_token_id": [0, 7]}')
    base = str(tmp_path / "base")
    run = tiny.run_spec(texts, model=spec.Model(path=base), tokenizer=spec.Tokenizer(path=base))
    run_dir, training = saved(tmp_path / "run", run)
    convert(request(run_dir, tmp_path / "hf"))
    assert content(tmp_path / "hf") == own_export(run_dir, training)
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["max_position_embeddings"] == 4096
    assert (tmp_path / "hf" / "generation_config.json").read_text() == '{"eos_token_id": [0, 7]}'


def test_adapters_are_merged_as_by_the_run(run_of: tuple[RunDir, Training], texts: Path, tmp_path: Path) -> None:
    convert(request(run_of[0], tmp_path / "base"))
    base = str(tmp_path / "base")
    model = spec.Model(path=base, lora=Adapter(rank=2))
    run_dir, training = saved(tmp_path / "run", tiny.run_spec(texts, model=model, tokenizer=spec.Tokenizer(path=base)))
    convert(request(run_dir, tmp_path / "hf"))
    assert content(tmp_path / "hf") == own_export(run_dir, training)
    assert content(tmp_path / "hf")["model.safetensors"] != content(tmp_path / "base")["model.safetensors"]


@pytest.mark.parametrize("optimizer", [True, False])
def test_whole_tensors_are_those_of_the_checkpoint(
    run_of: tuple[RunDir, Training], tmp_path: Path, optimizer: bool
) -> None:
    convert(request(run_of[0], tmp_path / "out", to="tensors", optimizer=optimizer))
    training = run_of[1]
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert loaded.keys() == training.model.state_dict().keys()
    assert all(torch.equal(loaded[name], weight) for name, weight in training.model.state_dict().items())
    position = json.loads((tmp_path / "out" / "training.json").read_text())
    assert (position["step"], position["reached"]["tokens_seen"]) == (STEP, 28)
    assert (tmp_path / "out" / "optimizer.safetensors").exists() == optimizer
    if optimizer:
        moments = load_file(tmp_path / "out" / "optimizer.safetensors")
        expected = training.optimizer.state[training.model.get_parameter("norm.weight")]["exp_avg"]
        assert torch.equal(moments["norm.weight.exp_avg"], expected)


def test_a_dry_run_writes_nothing(run_of: tuple[RunDir, Training], tmp_path: Path) -> None:
    result = convert(request(run_of[0], tmp_path / "out" / "hf", dry_run=True))
    assert not (tmp_path / "out").exists()
    written = convert(request(run_of[0], tmp_path / "out" / "hf"))
    assert result == written


def cut(folder: Path) -> None:
    (folder / layout.MANIFEST).unlink()


def flip(folder: Path) -> None:
    path = next(folder.glob("*.distcp"))
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)


@pytest.mark.parametrize(("harm", "what"), [(cut, "did not finish"), (flip, "does not match its SHA-256")])
def test_an_incomplete_or_damaged_checkpoint_is_refused(run_dir: RunDir, tmp_path: Path, harm: Any, what: str) -> None:
    harm(run_dir.checkpoint(STEP))
    with pytest.raises(UserError, match=what):
        convert(request(run_dir, tmp_path / "out" / "hf"))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_exists_is_refused(run_of: tuple[RunDir, Training], tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    with pytest.raises(UserError, match="exists already") as refused:
        convert(request(run_of[0], tmp_path / "hf"))
    assert "--output" in refused.value.fix
    assert list((tmp_path / "hf").iterdir()) == []


def test_a_checkpoint_of_another_model_is_refused(run_dir: RunDir, texts: Path, tmp_path: Path) -> None:
    tiny.prepare(run_dir.path, tiny.run_spec(texts, model=spec.Model(layers=2, hidden_size=64, heads=2, kv_heads=1)))
    with pytest.raises(UserError, match=r"another model: embedding\.weight"):
        convert(request(run_dir, tmp_path / "hf"))


@contextmanager
def limited_files(size_bytes: int) -> Iterator[None]:
    """A file-size limit stands for the full disk: the kernel refuses the write just so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_nothing(run_of: tuple[RunDir, Training], tmp_path: Path) -> None:
    with limited_files(32 * 1024), pytest.raises(UserError, match=r"may not become larger"):
        convert(request(run_of[0], tmp_path / "out" / "hf"))
    assert os.listdir(tmp_path / "out") == []


def test_a_disk_without_room_is_refused_before_a_byte_is_written(
    run_of: tuple[RunDir, Training], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(UserError, match="the disk has 1") as refused:
        convert(request(run_of[0], tmp_path / "out" / "hf"))
    assert refused.value.exit_code == 4
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_is_being_packed_is_left_alone(run_dir: RunDir, tmp_path: Path) -> None:
    with in_use.using(run_dir.checkpoint(STEP)), pytest.raises(UserError, match="uses it"):
        convert(request(run_dir, tmp_path / "hf"))
    convert(request(run_dir, tmp_path / "hf"))
    assert not list(run_dir.checkpoint(STEP).glob("IN_USE*"))


def test_the_trained_tokenizer_is_kept_with_the_run(run_dir: RunDir, tmp_path: Path) -> None:
    """Without the data it could not be trained again."""
    run = tiny.run_spec(tmp_path / "gone")
    tiny.prepare(run_dir.path, run)
    convert(request(run_dir, tmp_path / "hf"))
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() == (run_dir.tokenizer / "tokenizer.json").read_bytes()
    shutil.rmtree(run_dir.tokenizer)
    with pytest.raises(UserError):
        convert(request(run_dir, tmp_path / "other"))
