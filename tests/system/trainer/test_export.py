"""The export of a sharded model is that of the whole one, and no process holds the whole model for it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from prime_train import spec
from prime_train.checkpoints.packing import archive
from prime_train.core.rundir import RunDir
from prime_train.trainer.model import hf
from prime_train.trainer.model.decoder import Decoder, build
from prime_train.trainer.saves.convert_checkpoint import ConversionRequest, convert
from prime_train.trainer.saves.export import ModelRows
from tests.system.checkpoints.test_archive import content
from tests.system.trainer.two_ranks import run_on_two_ranks
from tests.unit.trainer import tiny

LARGE = replace(tiny.CONFIG, vocab_size=40_001, hidden_size=1024, heads=16, head_dim=64, mlp_size=2752, layers=4)
MIB = 2**20


def digest(model: torch.nn.Module, rank: int, config: Any) -> str:
    """The hash of the exported numbers on rank 0; that of nothing on the others."""
    sha256 = hashlib.sha256()
    for piece in hf.read_pieces(config, ModelRows(model, rank, None), torch.float32):
        sha256.update(piece.contiguous().view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def resident_mib(field: str) -> float:
    """VmRSS, or VmHWM: its peak since the last reset. Source: proc(5), status."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) / 1024


def shard(model: Decoder, shape: tuple[int, ...]) -> None:
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def export_sharded(shape: tuple[int, ...], rank: int) -> str:
    model = build(replace(tiny.CONFIG, vocab_size=37, kv_heads=2), 3)  # 37 rows: the shards are uneven
    shard(model, shape)
    return digest(model, rank, replace(tiny.CONFIG, vocab_size=37, kv_heads=2))


@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 2)], ids=["FSDP2", "replicas", "HSDP"])
def test_a_sharded_model_exports_the_same_numbers(tmp_path: Path, shape: tuple[int, ...]) -> None:
    config = replace(tiny.CONFIG, vocab_size=37, kv_heads=2)
    found = run_on_two_ranks(partial(export_sharded, shape), tmp_path)
    assert found == [digest(build(config, 3), 0, config), hashlib.sha256().hexdigest()]


def measure_export(rank: int) -> tuple[float, float]:
    """MiB that the export adds to this rank at its peak, and MiB of the whole model."""
    model = build(LARGE, 3)
    shard(model, (2,))
    dist.barrier()
    rows = ModelRows(model, rank, None)
    before = resident_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    for _ in hf.read_pieces(LARGE, rows, torch.float32):
        pass
    size = sum(weight.numel() for weight in model.parameters()) * 4 / MIB
    return resident_mib("VmHWM") - before, size


def test_no_rank_holds_the_whole_model(tmp_path: Path) -> None:
    """The model has 312 MiB, a block 38 MiB, a piece 64 MiB. Gathering the whole model added its size to rank 0."""
    for added_mib, model_mib in run_on_two_ranks(measure_export, tmp_path):
        assert model_mib > 300
        assert added_mib < 150


@pytest.mark.parametrize("dp_shard", [1, 2], ids=["DDP", "FSDP2"])
def test_loose_and_packed_checkpoints_export_what_their_run_exported(
    texts: Path, tmp_path: Path, dp_shard: int
) -> None:
    """From two processes, as the trainer saves and exports it."""
    run = replace(
        tiny.run_spec(texts),
        run=spec.Run(name="two", max_steps=2, seed=7),
        parallel=spec.Parallel(processes=2, dp_shard=dp_shard),
        batch=spec.Batch(micro_batch=2, global_batch=4),
        checkpoint=spec.Checkpoint(interval_steps=None, final="hf"),
    )
    run_dir = tiny.prepare(tmp_path / "run", run)
    code, output = tiny.train(run_dir, processes=2)
    assert code == 0, output
    for name in ("loose", "packed"):
        convert(request_of(run_dir, tmp_path / name))
        assert content(tmp_path / name) == content(run_dir.final)
        archive.compress(run_dir.checkpoint(2))


def request_of(run_dir: RunDir, output: Path) -> ConversionRequest:
    return ConversionRequest(to="hf", run_dir=str(run_dir.path), step=2, output=str(output))
