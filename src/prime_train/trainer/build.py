"""Builds what every training loop trains with: tokenizer, model, optimizer, checkpoints. Takes no step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.core.whole_folder import write_folder
from prime_train.events import Phase, TrainerStarted
from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of
from prime_train.spec.hf_config import find_conflicts, find_fp8_conflicts, find_fp8_size_conflict
from prime_train.trainer import cache, parallel, seed
from prime_train.trainer.attempt import Attempt, read_run
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.device import Device, pick
from prime_train.trainer.loops.rank_clock import start_clock
from prime_train.trainer.loops.spikes import spikes_from
from prime_train.trainer.loops.step import Training
from prime_train.trainer.loops.step_spans import StepSpans, plan_traces
from prime_train.trainer.model import block_changes, hf, lora
from prime_train.trainer.model.decoder import (
    VOCAB_ROWS,
    Decoder,
    ModelConfig,
    build,
    config_of,
    flops_per_token,
    initialise,
)
from prime_train.trainer.model.experts import find_routers
from prime_train.trainer.model.head_loss import choose_logprobs, choose_loss
from prime_train.trainer.muon import build_optimizer
from prime_train.trainer.saves import resume, start_from
from prime_train.trainer.saves.checkpoint import Checkpointer, TrainPosition
from prime_train.trainer.saves.checkpoint_removal import clear_unfinished
from prime_train.trainer.tokenizer import LoadedTokenizer, read_folder


def load_config(run: RunSpec, tokenizer: LoadedTokenizer) -> ModelConfig:
    """The architecture: an RL run embeds tokenizer.vocab_size tokens, as its server does. Raises UserError."""
    if run.model.path is None:
        config = config_of(run.model, tokenizer.vocab_size)
        if policy_of(run) is not None:
            config = replace(config, vocab_size=count_served_rows(run, config))
    else:
        config = replace(hf.read_config(Path(run.model.path)), pad_vocab=run.model.pad_vocab)
    refuse_conflicts(run, config)
    if tokenizer.vocab_size > config.vocab_size:
        what = f"the tokenizer has {tokenizer.vocab_size} tokens and the model embeds {config.vocab_size}"
        why = "a token beyond the embedding has no row in it"
        raise UserError(what, "tokenizer.path", why, f'tokenizer.path = "{run.model.path}"')
    return config


def count_served_rows(run: RunSpec, config: ModelConfig) -> int:
    """The rows of the embedding in a server, which starts before the tokenizer of the run is trained."""
    if run.model.path is not None or run.tokenizer.path is not None:
        return config.vocab_size
    return max(config.vocab_size, run.tokenizer.vocab_size)


def refuse_conflicts(run: RunSpec, config: ModelConfig) -> None:
    """UserError with the first setting that the architecture does not allow."""
    for conflict in chain(find_conflicts(run, config), find_fp8_conflicts(run), find_fp8_size_conflict(run, config)):
        raise UserError(conflict.what, conflict.at, conflict.why, f"{conflict.at} = {json.dumps(conflict.value)}")


def build_model(run: RunSpec, config: ModelConfig, device: Device, *, resumes: bool) -> Decoder:
    """The model with new weights, or those of model.init_from or model.path. On a CPU fp8 is emulated, for tests."""
    has_frozen = run.model.lora is not None  # a checkpoint has only the adapters
    sharded = run.parallel.dp_shard > 1
    if sharded:
        with torch.device("meta"):  # each process gets its shards alone, from `fill_shards`
            model = Decoder(config)
    else:
        model = build(config, run.run.seed, device.torch)
        if has_frozen or not resumes:
            _load_start(model, run)
    if run.model.lora is not None:
        lora.add_adapters(model, run.model.lora, run.run.seed)
        if not sharded:
            _load_adapters(model, run, resumes=resumes)
    model.head_loss = choose_loss(device.torch, config.vocab_size, compiled=run.model.compile)
    model.head_logprobs = choose_logprobs(device.torch, compiled=run.model.compile)
    if run.precision.fp8 != "none":
        block_changes.convert_blocks(model, run.precision.fp8, emulate=device.torch.type == "cpu")
    block_changes.recompute_blocks(model, run.model)
    if run.model.compile:
        for block in model.blocks:
            block.compile()
    return model


def fill_shards(model: nn.Module, run: RunSpec, device: Device, *, resumes: bool) -> None:
    """Give the shards of a model on the meta device the values of the whole model; do nothing for any other model."""
    if not any(weight.is_meta for weight in model.parameters()):
        return
    model.to_empty(device=device.torch)
    decoder = parallel.unwrap_decoder(model)
    has_frozen = run.model.lora is not None
    if (has_frozen or not resumes) and not _load_start(decoder, run):
        initialise(decoder, run.run.seed)
    if has_frozen:
        lora.initialise_adapters(decoder, run.run.seed)
        _load_adapters(decoder, run, resumes=resumes)


def _load_start(model: Decoder, run: RunSpec) -> bool:
    """Load the weights of model.init_from or model.path. Returns False for a model that has neither."""
    if start_from.find_content(run) == "weights":
        start_from.load_weights(model, run)
        return True
    if run.model.path is not None and run.model.init == "weights":
        hf.load_weights(model, Path(run.model.path))
        return True
    return False


def _load_adapters(model: Decoder, run: RunSpec, *, resumes: bool) -> None:
    """Load the adapters of model.init_from, where that holds adapters."""
    if not resumes and start_from.find_content(run) == "adapters":
        start_from.load_weights(model, run)


def join(attempt: Attempt) -> tuple[Device, parallel.World]:
    """The device of this process and its connection to the others, with all generators seeded."""
    run = attempt.run
    attempt.emit(Phase(attempt.number, "setup"))
    device = pick(run.precision.compute, int(os.environ.get("LOCAL_RANK", "0")))  # torchrun sets it
    if run.precision.fp8 != "none":
        block_changes.require_fp8(device)
    if run.precision.tf32 and device.torch.type == "cuda":
        torch.set_float32_matmul_precision("high")
    world = parallel.join(run.parallel.group_processes, device, run.parallel.collective_limit_s)
    seed.seed_all(run.run.seed, world.rank)
    return device, world


def set_up_training(
    attempt: Attempt, config: ModelConfig, device: Device, world: parallel.World
) -> tuple[Training, TrainPosition]:
    """`spread_training` for a decoder."""
    run, resumes = attempt.run, attempt.resume_step > 0
    build = partial(build_model, run, config, device, resumes=resumes)
    return spread_training(attempt, build, device, world, partial(fill_shards, run=run, device=device, resumes=resumes))


def spread_training(
    attempt: Attempt,
    build: Callable[[], nn.Module],
    device: Device,
    world: parallel.World,
    fill: Callable[[nn.Module], None] = lambda _model: None,
) -> tuple[Training, TrainPosition]:
    """The wrapped model and its optimizer, new or from the attempt's checkpoint, and the position reached.

    `fill` gives values to shards that were built on the meta device.
    """
    run = attempt.run
    for remade in cache.take_remade():
        attempt.emit(Phase(attempt.number, "data", remade))
    attempt.emit(Phase(attempt.number, "setup", "model"))
    model = parallel.spread(build(), world, run.parallel, device)
    fill(model)
    optimizer = build_optimizer(model, run.optim)
    reached = TrainPosition()
    if attempt.resume_step:
        attempt.emit(Phase(attempt.number, "setup", f"checkpoint step_{attempt.resume_step}"))
        reached = resume.load(attempt, model, optimizer, world)
    elif run.model.init_optimizer:
        start_from.load_optimizer(model, optimizer, run)
    clear_unfinished(attempt)
    traces = plan_traces(run, attempt.run_dir.profile, world.rank, device.torch)
    spans = StepSpans(world.rank, device.torch, traces, start_clock(attempt, model, device.torch, world))
    spans.watch_all_reduce(model)
    spikes = spikes_from(run.optim.on_spike, reached.spikes)
    clip_norm, reduce = run.optim.clip_norm, run.parallel.reduce
    routers = find_routers(model, run.model.expert_balance_rate, run.model.router_z_loss)
    return Training(model, optimizer, world, device, clip_norm, spans, spikes, reduce, routers), reached


def announce(attempt: Attempt, training: Training, classes: int) -> None:
    """Write this rank's TrainerStarted event. `classes`: how many the model predicts, as tokens are."""
    precision: str = training.device.compute
    if attempt.run.precision.fp8 != "none":
        precision += f", {block_changes.describe_layers(parallel.unwrap_decoder(training.model))}"
    started = TrainerStarted(
        attempt=attempt.number,
        pid=os.getpid(),
        rank=attempt.rank,
        world_size=training.world.size if attempt.replica is None else attempt.run.parallel.processes,
        device=training.device.name,
        precision=precision,
        params=sum(weight.numel() for weight in training.model.parameters()),
        vocab_size=classes,
        resume_step=attempt.resume_step,
    )
    if attempt.replica is None:
        attempt.events.append(started)
    else:
        attempt.emit(started)
    attempt.emit(Phase(attempt.number, "train"))


def gather_state(model: nn.Module) -> dict[str, Any]:
    """Every weight as a whole. Every process calls it; with shards only rank 0 gets them."""
    if not parallel.is_sharded(model):
        return parallel.unwrap(model).state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def gather_weights(model: nn.Module) -> dict[str, Any]:
    """Every weight by its name in the Decoder, with adapters merged. Every process calls it; rank 0 gets them."""
    weights = gather_state(model)
    scale = lora.find_scale(model)
    weights = weights if scale is None else lora.merge_adapters(weights, scale)
    used = parallel.unwrap_decoder(model).config.vocab_size
    # Rows of no token stay here: an engine and an export have a row for each token alone.
    padded = [name for name in VOCAB_ROWS if name in weights and len(weights[name]) > used]
    return weights | {name: weights[name][:used] for name in padded}


def load_run_tokenizer(run: RunSpec, run_dir: RunDir) -> LoadedTokenizer:
    """The tokenizer of a run. One that was trained on the data is in the run's directory. Raises UserError."""
    if run.tokenizer.path is not None:
        return read_folder(Path(run.tokenizer.path))
    if run_dir.tokenizer.is_dir():
        return read_folder(run_dir.tokenizer)
    if run.run.kind != "pretrain":
        return load_chat_tokenizer(run).tokenizer
    from prime_train.trainer.data.text_tokenizer import load_tokenizer  # reads text, of which a run on rewards has none

    return load_tokenizer(run)


def keep_tokenizer(attempt: Attempt, tokenizer: LoadedTokenizer) -> None:
    """Copy a tokenizer that was trained on the data into the run's directory, on rank 0, once per tokenizer."""
    folder = attempt.run_dir.tokenizer
    if not attempt.leads or attempt.run.tokenizer.path is not None:
        return
    content = {file.name: outside.read_bytes(file, outside.MODEL_BYTES) for file in tokenizer.files}
    if any(_read(folder / name) != text for name, text in content.items()):
        with write_folder(folder, replaces=True) as beside:
            for name, text in content.items():
                (beside / name).write_bytes(text)


def _read(path: Path) -> bytes | None:
    """The content of a file of the run's tokenizer; None where there is no regular file of its size."""
    try:
        return outside.read_bytes(path, outside.MODEL_BYTES, path.parent)
    except OSError:
        return None


def check_tokenizer(attempt: Attempt, tokenizer: LoadedTokenizer) -> None:
    """UserError where the run of `model.init_from` was trained on other tokens: sizes alone would not show it."""
    run = attempt.run
    if run.model.init_from is None or attempt.resume_step:
        return
    source = RunDir(Path(run.model.init_from))
    if load_run_tokenizer(read_run(source), source).fingerprint != tokenizer.fingerprint:
        what = f"the run {source.path.name} was trained with another tokenizer"
        fix = "take tokenizer.path out: the run then has the tokenizer of the other one"
        raise UserError(what, "tokenizer.path", "its weights would take each token for another one", fix)


@dataclass(frozen=True, slots=True)
class TextModel:
    """What a run on tokens knows about its model."""

    config: ModelConfig
    tokenizer: LoadedTokenizer


Known = TypeVar("Known", covariant=True)


@dataclass(frozen=True, slots=True)
class Ready(Generic[Known]):
    """What a loop trains with, set up once. `known`: more about the model, by the kind."""

    training: Training
    known: Known
    classes: int  # that the model predicts
    checkpointer: Checkpointer
    reached: TrainPosition  # before the first step
    flops_per_token: float  # or per clip: per unit that the loss counts


def get_ready(tokenizer: LoadedTokenizer, attempt: Attempt, device: Device, world: parallel.World) -> Ready[TextModel]:
    """A decoder and its optimizer, new or from the attempt's checkpoint. Raises UserError."""
    # Before the model is built, so that a run with another tokenizer ends without loading weights.
    keep_tokenizer(attempt, tokenizer)
    check_tokenizer(attempt, tokenizer)
    config = load_config(attempt.run, tokenizer)
    training, reached = set_up_training(attempt, config, device, world)
    flops = flops_per_token(config, attempt.run.data.ctx_tokens)
    checkpointer = Checkpointer(attempt, world, device.torch)
    return Ready(training, TextModel(config, tokenizer), config.vocab_size, checkpointer, reached, flops)
