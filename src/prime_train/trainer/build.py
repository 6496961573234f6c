"""Builds the model of a run and announces it. Shared by the training loops."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prime_train.core.errors import UserError
from prime_train.events import Phase, TrainerStarted
from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of
from prime_train.spec.hf_config import find_conflicts, find_fp8_conflicts, find_fp8_size_conflict
from prime_train.trainer import cache, parallel, seed
from prime_train.trainer import device as devices
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.loops.spikes import spikes_from
from prime_train.trainer.loops.step import Training
from prime_train.trainer.measure.step_spans import StepSpans
from prime_train.trainer.measure.step_traces import plan_traces
from prime_train.trainer.model import fp8, hf, lora
from prime_train.trainer.model.decoder import VOCAB_ROWS, Decoder, ModelConfig, build, config_of, initialise
from prime_train.trainer.model.experts import find_routers
from prime_train.trainer.model.head_loss import choose_logprobs, choose_loss
from prime_train.trainer.model.recompute import recompute_blocks
from prime_train.trainer.optim.muon import build_optimizer
from prime_train.trainer.saves import resume, start_from
from prime_train.trainer.saves.checkpoint import TrainPosition
from prime_train.trainer.saves.checkpoint_removal import clear_unfinished
from prime_train.trainer.tokenizer import LoadedTokenizer


def load_config(run: RunSpec, tokenizer: LoadedTokenizer) -> ModelConfig:
    """The architecture. Raises UserError if the tokenizer has tokens that the model does not embed.

    A model of an RL run embeds tokenizer.vocab_size tokens, because its engine starts before a tokenizer is trained.
    """
    if run.model.path is None:
        config = config_of(run.model, tokenizer.vocab_size)
        if policy_of(run) is not None:
            config = replace(config, vocab_size=count_served_rows(run, config))
        refuse_conflicts(run, config)
        return config
    config = replace(hf.read_config(Path(run.model.path)), pad_vocab=run.model.pad_vocab)
    refuse_conflicts(run, config)
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            what=f"the tokenizer has {tokenizer.vocab_size} tokens and the model embeds {config.vocab_size}",
            where="tokenizer.path",
            why="a token beyond the embedding has no row in it",
            fix=f'tokenizer.path = "{run.model.path}"',
        )
    return config


def count_served_rows(run: RunSpec, config: ModelConfig) -> int:
    """The rows of the embedding in a server, which starts before the tokenizer of the run is trained."""
    if run.model.path is not None or run.tokenizer.path is not None:
        return config.vocab_size
    return max(config.vocab_size, run.tokenizer.vocab_size)


def refuse_conflicts(run: RunSpec, config: ModelConfig) -> None:
    """UserError with the first setting that the architecture does not allow."""
    for conflict in chain(find_conflicts(run, config), find_fp8_conflicts(run), find_fp8_size_conflict(run, config)):
        raise UserError(
            what=conflict.what,
            where=conflict.at,
            why=conflict.why,
            fix=f"{conflict.at} = {json.dumps(conflict.value)}",
        )


def build_model(run: RunSpec, config: ModelConfig, device: devices.Device, *, resumes: bool) -> Decoder:
    """The model with new weights, or those of model.init_from or model.path.

    A resumed run loads its checkpoint into it later. On a CPU, for which `join` refuses fp8, a test gets emulated fp8.
    """
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
        fp8.convert_blocks(model, run.precision.fp8, emulate=device.torch.type == "cpu")
    recompute_blocks(model, run.model)
    if run.model.compile:
        for block in model.blocks:
            block.compile()
    return model


def fill_shards(model: nn.Module, run: RunSpec, device: devices.Device, *, resumes: bool) -> None:
    """Give the shards of a model on the meta device their memory and values; nothing for any other model.

    The values are those that the whole model would have. What a checkpoint holds, a resumed run gets from there.
    """
    if not any(weight.is_meta for weight in model.parameters()):
        return
    model.to_empty(device=device.torch)
    decoder = parallel.unwrap(model)
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


def join(attempt: Attempt) -> tuple[devices.Device, parallel.World]:
    """The device of this process and its connection to the others, with all generators seeded."""
    run = attempt.run
    attempt.emit(Phase(attempt.number, "setup"))
    device = devices.pick(run.precision.compute, int(os.environ.get("LOCAL_RANK", "0")))  # torchrun sets it
    if run.precision.fp8 != "none":
        fp8.require_fp8(device)
    if run.precision.tf32 and device.torch.type == "cuda":
        torch.set_float32_matmul_precision("high")
    world = parallel.join(run.parallel.processes, device, run.parallel.collective_limit_s)
    seed.seed_all(run.run.seed, world.rank)
    return device, world


def set_up_training(
    attempt: Attempt, config: ModelConfig, device: devices.Device, world: parallel.World
) -> tuple[Training, TrainPosition]:
    """The wrapped model and its optimizer, as new or from the checkpoint of the attempt, and the position reached."""
    run = attempt.run
    for remade in cache.take_remade():
        attempt.emit(Phase(attempt.number, "data", remade))
    attempt.emit(Phase(attempt.number, "setup", "model"))
    fresh = build_model(run, config, device, resumes=attempt.resume_step > 0)
    model = parallel.spread(fresh, world, run.parallel, device)
    fill_shards(model, run, device, resumes=attempt.resume_step > 0)
    optimizer = build_optimizer(model, run.optim)
    reached = TrainPosition()
    if attempt.resume_step:
        attempt.emit(Phase(attempt.number, "setup", f"checkpoint step_{attempt.resume_step}"))
        reached = resume.load(attempt, model, optimizer, world)
    elif run.model.init_optimizer:
        start_from.load_optimizer(model, optimizer, run)
    clear_unfinished(attempt)
    traces = plan_traces(run, attempt.run_dir.profile, world.rank, device.torch)
    spans = StepSpans(world.rank, device.torch, traces)
    spans.watch_all_reduce(model)
    spikes = spikes_from(run.optim.on_spike, reached.spikes)
    clip_norm, reduce = run.optim.clip_norm, run.parallel.reduce
    routers = find_routers(model, run.model.expert_balance_rate, run.model.router_z_loss)
    return Training(model, optimizer, world, device, clip_norm, spans, spikes, reduce, routers), reached


def announce(attempt: Attempt, training: Training, config: ModelConfig) -> None:
    """Write the TrainerStarted event of this rank."""
    precision: str = training.device.compute
    if attempt.run.precision.fp8 != "none":
        precision += f", {fp8.describe_layers(parallel.unwrap(training.model))}"
    started = TrainerStarted(
        attempt=attempt.number,
        pid=os.getpid(),
        rank=attempt.rank,
        world_size=training.world.size,
        device=training.device.name,
        precision=precision,
        params=sum(weight.numel() for weight in training.model.parameters()),
        vocab_size=config.vocab_size,
        resume_step=attempt.resume_step,
    )
    attempt.events.append(started)
    attempt.emit(Phase(attempt.number, "train"))


def gather_weights(model: nn.Module) -> dict[str, Any]:
    """Every weight by its name in the Decoder, with adapters merged.

    Every process must call it. The weights of a sharded model are gathered on rank 0 only; others return none.
    """
    if not parallel.is_sharded(model):
        weights: dict[str, Any] = parallel.unwrap(model).state_dict()
    else:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    scale = lora.find_scale(model)
    weights = weights if scale is None else lora.merge_adapters(weights, scale)
    used = parallel.unwrap(model).config.vocab_size
    # Rows of no token stay here: an engine and an export have a row for each token alone.
    padded = [name for name in VOCAB_ROWS if name in weights and len(weights[name]) > used]
    return weights | {name: weights[name][:used] for name in padded}
