"""Saves of other trainers as they write them: file by file, in their order, by several ranks at once.

The names and the order are those of the trainers; the content is small, and written by torch itself where it can be.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

STEP, EARLIER = 20, 10


class Write(NamedTuple):
    """One file, written in place; with `then` it is renamed to that name at its end."""

    name: str
    content: bytes
    then: str = ""


class Rename(NamedTuple):
    name: str
    then: str


class Remove(NamedTuple):
    name: str


Operation = Write | Rename | Remove
Sequence_ = list[Operation]


@dataclass(frozen=True)
class WrittenSave:
    """Stages that follow each other; in a stage each rank has a sequence of its own, and no rank waits.

    `after`: what a checkpoint does without. `unproven`: files whose loss nothing shows. `ranks`: from the launch.
    """

    layout: str
    stages: list[list[Sequence_]]
    after: Sequence_ = field(default_factory=list)
    ranks: int = 1
    unproven: tuple[str, ...] = ()


def write_whole(folder: Path, written: WrittenSave) -> None:
    for stage in [*written.stages, [written.after]]:
        for sequence in stage:
            for operation in sequence:
                _do(folder, operation)


def cut(folder: Path, written: WrittenSave, chance: random.Random) -> None:
    """Write until a moment at which at least one operation that a checkpoint needs is not done."""
    last = chance.randrange(len(written.stages))
    for stage in written.stages[:last]:
        for sequence in stage:
            for operation in sequence:
                _do(folder, operation)
    ends = [len(sequence) for sequence in written.stages[last]]
    # Often all ranks but one have finished: that is the cut that is hardest to see.
    done = [float(end) if chance.random() < 0.5 else chance.uniform(0, end) for end in ends]
    late = chance.randrange(len(ends))
    done[late] = chance.uniform(0, ends[late])
    for sequence, until in zip(written.stages[last], done, strict=True):
        for operation in sequence[: int(until)]:
            _do(folder, operation)
        if until < len(sequence):
            _begin(folder, sequence[int(until)], until - int(until))


def list_written(written: WrittenSave) -> list[str]:
    """The files that a whole save leaves, without those that a checkpoint does without."""
    with TemporaryDirectory() as folder:
        write_whole(Path(folder), WrittenSave(written.layout, written.stages))
        return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def _do(folder: Path, operation: Operation) -> None:
    path = folder / operation.name
    match operation:
        case Write(_, content, then):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if then:
                path.rename(folder / then)
        case Rename(_, then):
            (folder / then).parent.mkdir(parents=True, exist_ok=True)
            path.rename(folder / then)
        case Remove():
            path.unlink()


def _begin(folder: Path, operation: Operation, part: float) -> None:
    """A part of a file; a rename that has not happened leaves nothing."""
    if isinstance(operation, Write) and operation.content:
        path = folder / operation.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(operation.content[: int(part * len(operation.content))])


# --- contents --------------------------------------------------------------------------------------


@cache
def zipped(number: int = 0) -> bytes:
    content = io.BytesIO()
    torch.save({"number": number, "weights": torch.arange(40.0), "rows": [1, 2, 3]}, content)
    return content.getvalue()


def zipped_step(key: str, step: int) -> bytes:
    content = io.BytesIO()
    table = {key: step, "state_dict": torch.nn.Linear(3, 3).state_dict(), "callbacks": {"a": {"best_model_path": ""}}}
    torch.save(table, content)
    return content.getvalue()


def tensors() -> bytes:
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [20], "data_offsets": [0, 80]}, "__metadata__": {"format": "pt"}}
    )
    return len(header).to_bytes(8, "little") + header.encode() + bytes(range(80))


def text(**values: object) -> bytes:
    return json.dumps(values).encode()


@cache
def _saved_dcp() -> Mapping[str, bytes]:
    with TemporaryDirectory() as folder:
        state = {"w": torch.arange(100.0), "b": torch.ones(3, 3), "step": 7}
        save(state, storage_writer=FileSystemWriter(folder, single_file_per_rank=False), no_dist=True)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def dcp(folder: str) -> Sequence_:
    """The files of torch.distributed.checkpoint in the order in which it writes them."""
    found = _saved_dcp()
    shards: Sequence_ = [Write(f"{folder}/{name}", content) for name, content in found.items() if name != ".metadata"]
    return [*shards, Write(f"{folder}/.metadata.tmp", found[".metadata"], f"{folder}/.metadata")]


def zips(*names: str) -> Sequence_:
    return [Write(name, zipped()) for name in names]


# --- trainers --------------------------------------------------------------------------------------


def _hf(step: int, rank: str = "", *, weights: Sequence_ | None = None) -> Sequence_:
    at = f"checkpoint-{step}"
    return [
        Write(f"{at}/config.json", text(model_type="llama", layers=2)),
        Write(f"{at}/generation_config.json", text(eos_token_id=2)),
        *([Write(f"{at}/.tmp0sdbQg", tensors(), f"{at}/model.safetensors")] if weights is None else weights),
        *zips(f"{at}/training_args.bin", f"{at}/optimizer.pt", f"{at}/scheduler.pt", f"{at}/rng_state{rank}.pth"),
        Write(f"{at}/trainer_state.json", text(global_step=step, log_history=[{"loss": 1.5, "step": 1}])),
    ]


def _hf_shards(step: int) -> Sequence_:
    at = f"checkpoint-{step}"
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    shards: Sequence_ = [Write(f"{at}/.tmp{name[:8]}", tensors(), f"{at}/{name}") for name in names]
    return [*shards, Write(f"{at}/model.safetensors.index.json", text(weight_map=dict(zip("ab", names, strict=True))))]


def _hf_jit(step: int) -> Sequence_:
    sentinel = f"checkpoint-{step}/checkpoint-is-incomplete.txt"
    return [Write(sentinel, b"saving"), *_hf(step), Remove(sentinel)]


def _hf_fsdp(step: int) -> list[list[Sequence_]]:
    at = f"checkpoint-{step}"
    weights = [*dcp(f"{at}/pytorch_model_fsdp_0"), *dcp(f"{at}/optimizer_0")]
    return [[_hf(step, "_0", weights=weights), zips(f"{at}/rng_state_1.pth")]]


def _deepspeed(at: str, *, zero3: bool = False) -> list[Sequence_]:
    """The files of two ranks."""
    model = "zero_pp_rank_{}_mp_rank_00_model_states.pt" if zero3 else "mp_rank_00_model_states.pt"
    optim = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    first = zips(f"{at}/{model.format(0)}", f"{at}/{optim.format(0)}")
    return [first, zips(*([f"{at}/{model.format(1)}"] if zero3 else []), f"{at}/{optim.format(1)}")]


def _verl(at: str, rank: int) -> Sequence_:
    return zips(*(f"{at}/{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim", "extra_state")))


def _olmo_async(step: int) -> Sequence_:
    at = f"step{step}"
    return [
        *zips(f"{at}-tmp/train/rank0.pt", f"{at}-tmp/train/rank1.pt"),
        Rename(f"{at}-tmp/train", f"{at}/train"),
        *dcp(f"{at}/model_and_optim"),
        Write(f"{at}/.metadata.json.tmp", text(version="2"), f"{at}/.metadata.json"),
    ]


def _olmo_sync(step: int) -> Sequence_:
    at = f"step{step}-tmp"
    files = [*zips(f"{at}/train/rank0.pt", f"{at}/train/rank1.pt"), *dcp(f"{at}/model_and_optim")]
    return [
        *files,
        Rename(at, f"step{step}"),
        Write(f"step{step}/.tmp", text(version="2"), f"step{step}/.metadata.json"),
    ]


def _orbax(step: int) -> Sequence_:
    at = f"{step}.orbax-checkpoint-tmp-0"
    names = {"items/_METADATA": text(tree={}), "items/manifest.ocdbt": b"m" * 90, "items/d/0a1b": b"d" * 300}
    inside: Sequence_ = [Write(f"{at}/{name}", content) for name, content in names.items()]
    return [*inside, Write(f"{at}/_CHECKPOINT_METADATA", text(commit_timestamp_nsecs=1)), Rename(at, str(step))]


def _torchtitan_hf(step: int) -> Sequence_:
    at, name = f"step-{step}", "model-00001-of-00001.safetensors"
    shards = [Write(f"{at}/sharded/shard-00001-{name}", tensors()), Write(f"{at}/{name}", tensors())]
    return [*shards, Write(f"{at}/model.safetensors.index.json", text(weight_map={"a": name}))]


def _torchtune(step: int) -> Sequence_:
    at, name = f"epoch_{step}", "model-00001-of-00001.safetensors"
    weights = [
        Write(f"{at}/{name}", tensors()),
        Write(f"{at}/model.safetensors.index.json", text(weight_map={"a": name})),
    ]
    return [*weights, Write(f"{at}/config.json", text(layers=2)), *zips(f"{at}/recipe_state.pt")]


def _nanochat(step: int) -> list[Sequence_]:
    first = [Write(f"model_{step:06d}.pt", zipped()), Write(f"meta_{step:06d}.json", text(step=step, val_bpb=1.2))]
    return [[*first, *zips(f"optim_{step:06d}_rank0.pt")], zips(f"optim_{step:06d}_rank1.pt")]


def _actor_and_critic(step: int) -> WrittenSave:
    stages = [_deepspeed(f"{part}/global_step{step}") for part in ("_actor", "_critic")]
    return WrittenSave("openrlhf", stages, [Write("_actor/latest", f"global_step{step}".encode())], ranks=2)


def _megatron(step: int) -> WrittenSave:
    at = f"iter_{step:07d}"
    files = [*zips(f"{at}/common.pt"), *dcp(at), Write(f"{at}/metadata.json", text(sharded_backend="torch_dist"))]
    return WrittenSave("megatron-dist", [[files]], [Write("latest_checkpointed_iteration.txt", str(step).encode())])


def _megatron_legacy(step: int) -> WrittenSave:
    at = f"iter_{step:07d}"
    parts = [zips(f"{at}/mp_rank_0{n}/distrib_optim.pt", f"{at}/mp_rank_0{n}/model_optim_rng.pt") for n in (0, 1)]
    tracker: Sequence_ = [Write("latest_checkpointed_iteration.txt", str(step).encode())]
    return WrittenSave("megatron", [parts, [tracker]], ranks=2)


def _verl_ppo(step: int) -> WrittenSave:
    at = f"global_step_{step}"
    ranks = [[*_verl(f"{at}/actor", rank), *_verl(f"{at}/critic", rank)] for rank in (0, 1)]
    ranks[0].insert(3, Write(f"{at}/actor/fsdp_config.json", text(version=1)))
    tracker: Sequence_ = [Write("latest_checkpointed_iteration.txt", str(step).encode())]
    return WrittenSave("verl", [ranks, [zips(f"{at}/data.pt")]], tracker, 2, ("actor/fsdp_config.json",))


def _verl_sft(step: int) -> WrittenSave:
    at = f"global_step_{step}"
    ranks = [[*_verl(at, rank), *zips(f"{at}/data_{rank}.pt")] for rank in (0, 1)]
    tracker: Sequence_ = [Write(".tracker.tmp", str(step).encode(), "latest_checkpointed_iteration.txt")]
    return WrittenSave("verl-sft", [ranks, [tracker]], ranks=2)


def _with_latest(layout: str, ranks: list[Sequence_], step: int) -> WrittenSave:
    return WrittenSave(layout, [ranks], [Write("latest", f"global_step{step}".encode())], ranks=2)


def _lightning(step: int) -> WrittenSave:
    """In place, as where the folder for temporary files is on another disk."""
    return WrittenSave("lightning", [[[Write(f"epoch=0-step={step}.ckpt", zipped_step("global_step", step))]]])


def _lightning_sharded(step: int) -> WrittenSave:
    at = f"epoch=0-step={step}.ckpt"
    return WrittenSave("lightning-sharded", [[dcp(at)], [zips(f"{at}/meta.pt")]])


def _lightning_deepspeed(step: int) -> WrittenSave:
    return WrittenSave("lightning-sharded", [_deepspeed(f"epoch=0-step={step}.ckpt/checkpoint")], ranks=2)


def _hf_deepspeed(step: int) -> WrittenSave:
    at = f"checkpoint-{step}"
    stages = [
        _deepspeed(f"{at}/global_step{step}", zero3=True),
        [_hf(step, "_0", weights=[]), zips(f"{at}/rng_state_1.pth")],
    ]
    return WrittenSave("hf", stages, ranks=2)


def _accelerate(step: int) -> WrittenSave:
    at = f"checkpoint_{step}"
    others = zips(f"{at}/optimizer.bin", f"{at}/scheduler.bin", f"{at}/sampler.bin", f"{at}/random_states_0.pkl")
    ranks = [[Write(f"{at}/.tmpa", tensors(), f"{at}/model.safetensors"), *others], zips(f"{at}/random_states_1.pkl")]
    return WrittenSave("accelerate", [ranks], ranks=2)


def _llama_factory(step: int) -> WrittenSave:
    at = f"checkpoint-{step}"
    files = [
        Write(f"{at}/model.safetensors", tensors()),
        *zips(f"{at}/optimizer.pt"),
        Write(f"{at}/CHECKPOINT_COMPLETE", b""),
    ]
    return WrittenSave("llama-factory-v1", [[files]])


def _nemo_rl(step: int) -> Sequence_:
    at = f"tmp_step_{step}"
    info = Write(f"{at}/training_info.json", text(step=step, total_steps=step, consumed_samples=640))
    weights = [*dcp(f"{at}/policy/weights/model"), *dcp(f"{at}/policy/optimizer/optim")]
    files = [*weights, Write(f"{at}/policy/tokenizer/tokenizer.json", text(version="1.0"))]
    return [
        info,
        Write(f"{at}/config.yaml", b"sft: {}"),
        *files,
        *zips(f"{at}/train_dataloader.pt"),
        Rename(at, at[4:]),
    ]


def _nemo_automodel(step: int) -> WrittenSave:
    """Two ranks. The folder is renamed into place with the mark in it."""
    at = f"epoch_0_step_{step}"
    reserve: Sequence_ = [
        Write(f"{at}.reserving-1/.incomplete", b""),
        Rename(f"{at}.reserving-1", at),
        Write(f"{at}/losses.json", text(train_loss=1.5)),
    ]
    ranks = [zips(f"{at}/rng/rng_global_rank_{rank}.pt") for rank in (0, 1)]
    shard = Write(f"{at}/model/shard-00001-model-00001-of-00001.safetensors", tensors())
    last: Sequence_ = [*zips(f"{at}/step_scheduler.pt"), shard, *dcp(f"{at}/optim"), Remove(f"{at}/.incomplete")]
    return WrittenSave("nemo-automodel", [[reserve], ranks, [last]], ranks=2)


def _live(step: int) -> Sequence_:
    names, content = (f"step_{step}/state.pt", f"step_{step}/deep/more.bin"), (zipped(), b"x" * 900)
    sizes = {name.partition("/")[2]: {"bytes": len(data)} for name, data in zip(names, content, strict=True)}
    manifest = json.dumps({"version": 1, "step": step, "files": sizes}).encode()
    written = [Write(name, data) for name, data in zip(names, content, strict=True)]
    return [*written, Write(f"step_{step}/COMPLETE.json.tmp", manifest, f"step_{step}/COMPLETE.json")]


def _ms_swift_flash(step: int) -> WrittenSave:
    """JSON at once; the rest by another process, and the tracker in place when that is done."""
    at = f"checkpoint-{step}"
    state = text(global_step=step, max_steps=100)
    at_once: Sequence_ = [Write(f"{at}/config.json", text(layers=2)), Write(f"{at}/trainer_state.json", state)]
    shard = [Write(f"{at}/model.safetensors", tensors()), *zips(*(f"{at}/{n}" for n in _FLASH_FILES))]
    tracker: Sequence_ = [Write("dlrover_latest.txt", str(step).encode())]
    return WrittenSave("ms-swift-flash", [[at_once], [shard], [tracker]])


_FLASH_FILES = ("optimizer.pt", "scheduler.pt", "rng_state.pth")


def _fairseq(step: int) -> WrittenSave:
    after: Sequence_ = [Write("checkpoint_last.pt", zipped())]
    return WrittenSave("fairseq", [[[Write(f"checkpoint_1_{step}.pt", zipped())]]], after)


def _litgpt(step: int) -> WrittenSave:
    after: Sequence_ = [
        Write(f"step-{step:08d}/{name}", b"a: 1\n") for name in ("hyperparameters.yaml", "model_config.yaml")
    ]
    return WrittenSave("litgpt", [[[Write(f"step-{step:08d}/lit_model.pth", zipped())]]], after)


def _mmengine(step: int) -> WrittenSave:
    after: Sequence_ = [Write("last_checkpoint", f"work/iter_{step}.pth".encode())]
    return WrittenSave("mmengine", [[[Write(f"iter_{step}.pth", zipped())]]], after)


SAVES: Mapping[str, Callable[[int], WrittenSave]] = {
    "hf": lambda step: WrittenSave("hf", [[_hf(step)]]),
    "hf, two ranks": lambda step: WrittenSave(
        "hf", [[_hf(step, "_0"), zips(f"checkpoint-{step}/rng_state_1.pth")]], ranks=2
    ),
    "hf, several weight files": lambda step: WrittenSave("hf", [[_hf(step, weights=_hf_shards(step))]]),
    "hf, at SIGTERM": lambda step: WrittenSave("hf", [[_hf_jit(step)]]),
    "hf, FSDP": lambda step: WrittenSave("hf", _hf_fsdp(step), ranks=2),
    "hf, DeepSpeed": _hf_deepspeed,
    "llama-factory v1": _llama_factory,
    "ms-swift, flash": _ms_swift_flash,
    "nemo-rl": lambda step: WrittenSave(
        "nemo-rl", [[_nemo_rl(step)]], unproven=("config.yaml", "policy/tokenizer/tokenizer.json")
    ),
    "nemo-automodel": _nemo_automodel,
    "torch": lambda step: WrittenSave("torch", [[[Write(f"ckpt_{step}.pt", zipped())]]]),
    "composer": lambda step: WrittenSave("composer", [[[Write(f"ep0-ba{step}-rank0.pt", zipped())]]]),
    "composer, sharded": lambda step: WrittenSave("composer-sharded", [[dcp(f"ep0-ba{step}")]]),
    "fairseq": _fairseq,
    "litgpt": _litgpt,
    "mmengine": _mmengine,
    "accelerate": _accelerate,
    "live": lambda step: WrittenSave("live", [[_live(step)]]),
    "dcp": lambda step: WrittenSave("dcp", [[dcp(f"step_{step}")]]),
    "torchtitan": lambda step: WrittenSave("torchtitan", [[dcp(f"step-{step}")]]),
    "torchtitan, last step": lambda step: WrittenSave("torchtitan", [[_torchtitan_hf(step)]]),
    "lightning": _lightning,
    "lightning, FSDP": _lightning_sharded,
    "lightning, DeepSpeed": _lightning_deepspeed,
    "nanochat": lambda step: WrittenSave("nanochat", [_nanochat(step)], ranks=2),
    "olmo-core": lambda step: WrittenSave("olmo-core", [[_olmo_sync(step)]], ranks=2),
    "olmo-core, async": lambda step: WrittenSave("olmo-core", [[_olmo_async(step)]], ranks=2),
    "megatron-lm": _megatron,
    "megatron-lm, legacy": _megatron_legacy,
    "verl": _verl_ppo,
    "verl, sft": _verl_sft,
    "deepspeed": lambda step: _with_latest("deepspeed", _deepspeed(f"global_step{step}"), step),
    "deepspeed, ZeRO 3": lambda step: _with_latest("deepspeed", _deepspeed(f"global_step{step}", zero3=True), step),
    "openrlhf": lambda step: _with_latest("openrlhf", _deepspeed(f"global_step{step}"), step),
    "openrlhf, with rewards": _actor_and_critic,
    "orbax": lambda step: WrittenSave("orbax", [[_orbax(step)]], unproven=("items/manifest.ocdbt", "items/d/0a1b")),
    "torchtune": lambda step: WrittenSave("torchtune", [[_torchtune(step)]], unproven=("config.json",)),
    "prime-rl": lambda step: WrittenSave(
        "prime-rl", [[[*zips(f"step_{step}/trainer/dataloader/rank_0.pt"), *dcp(f"step_{step}/trainer")]]]
    ),
}


def truncations(folder: Path, written: WrittenSave, chance: random.Random, times: int) -> Iterator[str]:
    """Cut one file of a whole save, each time another; the file is whole again afterwards."""
    names = [name for name in list_written(written) if not name.endswith(written.unproven or ("?",))]
    contents = {name: content for name in names if (content := (folder / name).read_bytes())}
    for _ in range(times):
        name = chance.choice(sorted(contents))
        os.truncate(folder / name, chance.randrange(len(contents[name])))
        yield name
        (folder / name).write_bytes(contents[name])
