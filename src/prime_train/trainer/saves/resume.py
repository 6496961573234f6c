"""Loads a checkpoint into a model and its optimizer. Writes only to unpack a checkpoint or to mark it as damaged."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from prime_train.checkpoints import layout
from prime_train.checkpoints.packing import archive, packing_plan
from prime_train.checkpoints.packing.archive import DamagedError
from prime_train.core.errors import UserError
from prime_train.events import CheckpointUnreadable, Phase
from prime_train.trainer import machine_files, seed
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.failure import cause_class, find_reason
from prime_train.trainer.parallel import World
from prime_train.trainer.saves.checkpoint import TrainPosition
from prime_train.trainer.saves.staging import State


def load(attempt: Attempt, model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> TrainPosition:
    """Load model, optimizer and generators from the checkpoint of `attempt.resume_step`, or condemn it: DamagedError.

    Checkpoints of other numbers of processes, or of DDP instead of FSDP2, load too; further ranks are newly seeded.
    """
    _prepare_files(attempt, world)
    try:
        return _load(attempt, model, optimizer, world)
    except OSError:
        raise  # the disk may answer at the next attempt
    except Exception as error:
        # No rank waits for another one in here, so the end of another rank condemns nothing.
        if cause_class(error) != "unknown":
            raise
        raise _condemn(attempt, error) from error


def _condemn(attempt: Attempt, error: Exception) -> DamagedError:
    """Record that the checkpoint does not load; returns the error. The next attempt takes the one before.

    Its bytes are as saved, so the manifest stays, and the next `prime-train run` tries it again.
    """
    inner = find_reason(error)
    text = next(iter(str(inner).strip().splitlines()), "")
    problem = f"it raises {type(inner).__name__}: {text[:200]}"
    attempt.events.append(CheckpointUnreadable(attempt.number, attempt.resume_step, problem))
    return DamagedError(f"step_{attempt.resume_step} is as it was saved, but does not load: {problem}")


def _load(attempt: Attempt, model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> TrainPosition:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load as read

    from prime_train.trainer.saves.dcp_reader import Planner, Reader  # imports DCP, which takes half a second

    folder = attempt.run_dir.checkpoint(attempt.resume_step)
    reader = Reader(folder, {entry.name for entry in layout.entries(folder)})
    saved = reader.read_metadata().state_dict_metadata
    options = StateDictOptions(ignore_frozen_params=True, strict=all(each.requires_grad for each in model.parameters()))
    weights, optimizer_state = get_state_dict(model, optimizer, options=options)
    _check_shapes(weights, saved, attempt)
    # Every rank draws from generators of its own. A rank that the checkpoint does not have is seeded.
    generators = f"generators_{world.rank}"
    state: State = {"model": weights, "optimizer": optimizer_state["state"], "reached": ""}
    if generators in saved:
        state[generators] = ""
    try:
        # Each rank reads its own shards from the shared folder; the ranks have nothing to agree on.
        read(state, storage_reader=reader, planner=Planner(), no_dist=True)
    except CheckpointException as error:  # a BaseException (torch 2.13), which `except Exception` does not catch
        raise RuntimeError(f"{folder.name} does not load") from error
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict={"state": state["optimizer"], "param_groups": optimizer_state["param_groups"]},
        options=options,
    )
    if generators in state:
        seed.set_rng_state(json.loads(state[generators]))
    else:
        seed.seed_all(seed.mix(attempt.run.run.seed, attempt.resume_step), world.rank)
    return TrainPosition(**json.loads(state["reached"]))


def _prepare_files(attempt: Attempt, world: World) -> None:
    """Restore packed files on rank 0; then every rank compares its part with the SHA-256. Raises DamagedError."""
    folder = attempt.run_dir.checkpoint(attempt.resume_step)
    if world.rank == 0 and not layout.problem(folder) and packing_plan.is_packed(folder):
        attempt.emit(Phase(attempt.number, "setup", f"restores {folder.name}, which is packed"))
        try:
            archive.restore(folder)
        except DamagedError as error:
            raise _mark_damaged(attempt, str(error)) from error
    # The other ranks read the files that rank 0 restores.
    world.wait()
    machine_files.hand_out(folder, world)
    if problem := layout.problem(folder, on_read=lambda _: None, part=world.local_rank, parts=world.local_size):
        raise _mark_damaged(attempt, problem)


def _mark_damaged(attempt: Attempt, problem: str) -> DamagedError:
    """Record in an event and the manifest that the checkpoint is damaged, so that the one before is next."""
    folder = attempt.run_dir.checkpoint(attempt.resume_step)
    attempt.events.append(CheckpointUnreadable(attempt.number, attempt.resume_step, problem))
    with suppress(OSError, ValueError):  # without a readable manifest the event is enough
        layout.mark_damaged(folder, problem)
    return DamagedError(f"{folder.name}: {problem}")


def _check_shapes(weights: dict[str, Any], saved: dict[str, Any], attempt: Attempt) -> None:
    """UserError where the checkpoint belongs to another model."""
    for name, weight in weights.items():
        entry = saved.get(f"model.{name}")
        if entry is not None and entry.size == weight.shape:
            continue
        found = "is not in it" if entry is None else f"is {tuple(entry.size)} in it"
        raise UserError(
            what=f"checkpoint step_{attempt.resume_step} belongs to another model: {name} {found}, "
            f"and {tuple(weight.shape)} in the config",
            where=str(attempt.run_dir.checkpoint(attempt.resume_step)),
            why="a run must continue with the model that it started with",
            fix="set [model] and [tokenizer] back, or start a run with another name",
        )
