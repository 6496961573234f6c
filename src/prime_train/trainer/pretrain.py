"""Pretrains a language model in one flat loop, from the first step or a checkpoint to the last step or a stop."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from prime_train.core.errors import UserError
from prime_train.events import Phase, TrainerFinished, TrainerStarted, TrainerStopped
from prime_train.spec import RunSpec
from prime_train.trainer import device as devices
from prime_train.trainer import hf, parallel, resume, seed
from prime_train.trainer import hf as hf_config
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.checkpoint import Checkpointer, TrainPosition, clear_unfinished
from prime_train.trainer.data import stream
from prime_train.trainer.data.batch import Batch
from prime_train.trainer.data.stream import held_out_batches
from prime_train.trainer.evaluate import evaluate
from prime_train.trainer.metrics import Metrics, StepMetrics
from prime_train.trainer.model import Decoder, ModelConfig, build, config_of, flops_per_token
from prime_train.trainer.step import StepResult, Training, adamw, lr_ratio, train_step
from prime_train.trainer.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class _Ready:
    """Everything that the loop needs, set up once."""

    training: Training
    config: ModelConfig
    tokenizer: Tokenizer
    rows: stream.TrainStream
    held_out: list[Batch]
    reached: TrainPosition
    flops_per_token: float


def main(attempt: Attempt, stop: StopFlag) -> None:
    """Train until max_steps; when `stop` is requested, save a checkpoint and end early."""
    with stop.exit_on_stop(lambda: attempt.emit(TrainerStopped(attempt.number, attempt.resume_step))):
        ready = _set_up(attempt)
    _train(attempt, ready, stop)


def _set_up(attempt: Attempt) -> _Ready:
    run = attempt.run
    attempt.emit(Phase(attempt.number, "setup"))
    device = devices.pick(run.precision.compute, int(os.environ.get("LOCAL_RANK", "0")))  # torchrun sets it
    world = parallel.join(run.parallel.processes, device)
    seed.seed_all(run.run.seed, world.rank)

    attempt.emit(Phase(attempt.number, "tokenizer"))
    tokenizer = _load_tokenizer(run, world)

    attempt.emit(Phase(attempt.number, "setup", "model"))
    config = _load_config(run, tokenizer)
    fresh = _build_model(run, config, device, resumes=attempt.resume_step > 0)
    model = parallel.spread(fresh, world, run.parallel, device)
    optimizer = adamw(model, run.optim)
    training = Training(model, optimizer, world, device, run.optim.clip_norm)
    if attempt.resume_step:
        attempt.emit(Phase(attempt.number, "setup", f"checkpoint step_{attempt.resume_step}"))
        reached = resume.load(attempt, model, optimizer, world)
    else:
        reached = TrainPosition()
    clear_unfinished(attempt)

    attempt.emit(Phase(attempt.number, "data"))
    rows = stream.TrainStream(run, tokenizer, world.rank, world.size, reached.data or None)
    flops = flops_per_token(config, run.data.ctx_tokens)
    return _Ready(training, config, tokenizer, rows, held_out_batches(run, tokenizer), reached, flops)


def _train(attempt: Attempt, ready: _Ready, stop: StopFlag) -> None:
    run, training, reached, rows = attempt.run, ready.training, ready.reached, ready.rows
    micro_batches_per_step = run.global_batch // (run.batch.micro_batch * training.world.size)
    checkpointer = Checkpointer(attempt, training.world, training.device.torch)
    metrics = Metrics(attempt)
    _announce(attempt, training, ready.config)
    result: StepResult | None = None
    for step in range(reached.step + 1, run.run.max_steps + 1):
        micro_batches, data_s = _next_micro_batches(rows, micro_batches_per_step)
        lr = run.optim.lr * lr_ratio(run.schedule, step - 1, run.run.max_steps)
        result = train_step(
            training, micro_batches, lr, stop_requested=stop.is_requested(), before_update=checkpointer.before_update
        )
        _check_finite(step, lr, result)
        reached = TrainPosition(step, reached.tokens_seen + result.tokens, rows.position())
        metrics.add(_step_metrics(ready, reached, result, lr, (data_s, checkpointer.take_stall_s())))
        if step == attempt.resume_step + 1:
            checkpointer.prepare(training.model, training.optimizer)
        if result.stop:
            break
        if step < run.run.max_steps and _is_due(step, run.checkpoint.interval_steps):
            # Before the evaluation, so that the checkpoint is written meanwhile.
            checkpointer.save(training.model, training.optimizer, reached)
        if step < run.run.max_steps and _is_due(step, run.eval.interval_steps):
            metrics.flush()
            _evaluate(attempt, ready, step)
            attempt.emit(Phase(attempt.number, "train"))
    metrics.close()

    attempt.emit(Phase(attempt.number, "checkpoint"))
    if reached.step > attempt.resume_step:
        checkpointer.save(training.model, training.optimizer, reached)
    if result is not None and result.stop:
        checkpointer.finish()
        attempt.emit(TrainerStopped(attempt.number, reached.step))
    else:
        _finish(attempt, ready, checkpointer, reached.step)
    parallel.leave(training.world)


def _next_micro_batches(rows: stream.TrainStream, count: int) -> tuple[list[Batch], float]:
    """The micro-batches of a step, and the seconds that the loop waited for them."""
    began = time.perf_counter()
    return [rows.next_micro_batch() for _ in range(count)], time.perf_counter() - began


def _evaluate(attempt: Attempt, ready: _Ready, step: int) -> float:
    attempt.emit(Phase(attempt.number, "evaluate"))
    return evaluate(ready.training, ready.tokenizer, ready.held_out, attempt, step)


def _finish(attempt: Attempt, ready: _Ready, checkpointer: Checkpointer, step: int) -> None:
    """Evaluate while the last checkpoint is written, wait for it, and export the weights if configured."""
    loss = _evaluate(attempt, ready, step)
    attempt.emit(Phase(attempt.number, "checkpoint"))
    checkpointer.finish()
    final = attempt.run_dir.checkpoint(step)
    if attempt.run.checkpoint.final == "hf":
        attempt.emit(Phase(attempt.number, "export"))
        final = _export(attempt, ready)
    attempt.emit(TrainerFinished(attempt.number, step, loss, str(final)))


def _step_metrics(
    ready: _Ready, reached: TrainPosition, result: StepResult, lr: float, waited_s: tuple[float, float]
) -> StepMetrics:
    """The metrics of a step. `waited_s`: seconds that the loop waited for data, and for a checkpoint."""
    (data_s, checkpoint_s), training = waited_s, ready.training
    step_s = data_s + result.forward_backward_s + result.optimizer_s + checkpoint_s
    tokens_per_s = result.tokens / step_s
    peak_flops = training.device.peak_flops and training.device.peak_flops * training.world.size
    return StepMetrics(
        step=reached.step,
        loss=result.loss,
        lr=lr,
        grad_norm=result.grad_norm,
        tokens=result.tokens,
        tokens_seen=reached.tokens_seen,
        tokens_per_s=tokens_per_s,
        step_s=step_s,
        data_s=data_s,
        forward_backward_s=result.forward_backward_s,
        optimizer_s=result.optimizer_s,
        checkpoint_s=checkpoint_s,
        peak_memory_gib=training.device.peak_memory_gib(),
        mfu=None if peak_flops is None else tokens_per_s * ready.flops_per_token / peak_flops,
    )


def _check_finite(step: int, lr: float, result: StepResult) -> None:
    """UserError where the training has diverged. No checkpoint has the weights of this step."""
    if math.isfinite(result.loss) and math.isfinite(result.grad_norm):
        return
    raise UserError(
        what=f"step {step} gave a loss of {result.loss} and a gradient norm of {result.grad_norm}",
        where=f"step {step}, learning rate {lr:.3g}",
        why="training cannot recover from a value that is not finite; repeating the step would give it again",
        fix=f"optim.lr = {lr / 3:.1g}, or a longer schedule.warmup_steps; the newest checkpoint is from before",
    )


def _is_due(step: int, interval_steps: int | None) -> bool:
    return interval_steps is not None and step % interval_steps == 0


def _load_tokenizer(run: RunSpec, world: parallel.World) -> Tokenizer:
    """The tokenizer. Rank 0 trains and caches tokenizer and tokens; the other ranks wait and read the cache."""
    tokenizer = stream.prepare(run) if world.rank == 0 else None
    world.wait()
    return tokenizer or load_tokenizer(run)


def _load_config(run: RunSpec, tokenizer: Tokenizer) -> ModelConfig:
    if run.model.path is None:
        return config_of(run.model, tokenizer.vocab_size)
    config = hf_config.read_config(Path(run.model.path))
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            what=f"the tokenizer has {tokenizer.vocab_size} tokens and the model embeds {config.vocab_size}",
            where="tokenizer.path",
            why="a token beyond the embedding has no row in it",
            fix=f'tokenizer.path = "{run.model.path}"',
        )
    return config


def _build_model(run: RunSpec, config: ModelConfig, device: devices.Device, *, resumes: bool) -> Decoder:
    """The model with new weights or those of model.path. A resumed run loads its checkpoint into it later."""
    model = build(config, run.run.seed, device.torch)
    if run.model.path is not None and run.model.init == "weights" and not resumes:
        hf.load_weights(model, Path(run.model.path))
    if run.model.compile:
        for block in model.blocks:
            block.compile()
    return model


def _announce(attempt: Attempt, training: Training, config: ModelConfig) -> None:
    """Write the TrainerStarted event of this rank."""
    started = TrainerStarted(
        attempt=attempt.number,
        pid=os.getpid(),
        rank=attempt.rank,
        world_size=training.world.size,
        device=training.device.name,
        precision=training.device.compute,
        params=sum(weight.numel() for weight in training.model.parameters()),
        vocab_size=config.vocab_size,
        resume_step=attempt.resume_step,
    )
    attempt.events.append(started)
    attempt.emit(Phase(attempt.number, "train"))


def _export(attempt: Attempt, ready: _Ready) -> Path:
    """Write the Hugging Face folder on rank 0; returns its path."""
    weights = _gather_weights(ready.training.model)
    if attempt.rank == 0:
        export = hf_config.Export(
            ctx_tokens=attempt.run.data.ctx_tokens,
            stop_token=ready.tokenizer.eos_id,
            tokenizer_files=ready.tokenizer.files,
        )
        hf.save(attempt.run_dir.final, ready.config, weights, export)
    return attempt.run_dir.final


def _gather_weights(model: nn.Module) -> dict[str, Any]:
    """Every weight by its name in the Decoder. The weights of a sharded model are gathered on rank 0 only."""
    if not parallel.is_sharded(model):
        return parallel.unwrap(model).state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
