"""Saves checkpoints in the background, one at a time. Loads none.

The steps of a save: gather (names for live tensors) -> copy into staging memory -> write -> manifest -> retention.
The training loop does only the first step. It continues to compute gradients, and waits for the copy to be complete
before it changes a weight.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prime_train.checkpoints import layout, removal
from prime_train.core.errors import UserError, explain_disk_error
from prime_train.core.spans import Spans
from prime_train.events import CheckpointSaved, CheckpointStarted
from prime_train.trainer import machine_files, seed
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.failure import disk_cause, disk_errno
from prime_train.trainer.loops.step_spans import lane_of
from prime_train.trainer.parallel import World
from prime_train.trainer.saves.checkpoint_removal import delete_superseded, make_room
from prime_train.trainer.saves.staging import Staging, State, size_bytes

# DCP warns at each save and load of a single process, which is intended here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


@dataclass(frozen=True, slots=True)
class TrainPosition:
    """The position of a run: what a resumed attempt needs besides tensors and generators."""

    step: int = 0
    tokens_seen: int = 0
    data: dict[str, Any] = field(default_factory=dict)  # TrainStream.position
    spikes: dict[str, Any] = field(default_factory=dict)  # Spikes.position
    settings: list[dict[str, Any]] = field(default_factory=list)  # LiveSettings.position
    rate: dict[str, Any] = field(default_factory=dict)  # RateRamp.position


def gather(model: nn.Module, optimizer: torch.optim.Optimizer, reached: TrainPosition, rank: int) -> State:
    """The live content of a checkpoint, by names that do not depend on DDP, FSDP2 or the number of processes.

    Without hyperparameters, which the config has, and frozen weights, which are those of the start. Only rank 0 gives
    the position: it alone has rollouts, and of values with one name DCP keeps that of any rank.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict  # half a second: not at start

    weights, optimizer_state = get_state_dict(model, optimizer, options=StateDictOptions(ignore_frozen_params=True))
    state = {
        "model": weights,
        "optimizer": optimizer_state["state"],
        f"generators_{rank}": json.dumps(seed.rng_state()),
    }
    return state | {"reached": json.dumps(asdict(reached))} if rank == 0 else state


@dataclass(slots=True)
class _Save:
    """One save in progress."""

    step: int
    began: float
    stall_s: float = 0.0  # that the loop waited, without the wait in progress
    waiting_since: float | None = None
    staged: threading.Event = field(default_factory=threading.Event)
    done: Future[None] = field(default_factory=Future)


class Checkpointer:
    """Saves training states. `save`, `before_update` and `finish` raise the error of a failed save."""

    def __init__(self, attempt: Attempt, world: World, device: torch.device) -> None:
        self._attempt = attempt
        self._config = attempt.run.checkpoint
        self._world = world
        self._device = device
        self._staging = Staging(device)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer", initializer=_lower_priority)
        self._save: _Save | None = None
        self._undeletable: set[int] = set()  # steps
        self._stall_s = 0.0
        self._spans = Spans(lane_of(world.rank))
        self.more: Callable[[], State] = dict  # what a loop saves beside the training, by names of its own

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Reserve memory for saves, after the first step. An error is not raised: it comes again in the first save."""
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        state = {"model": trained, "optimizer": dict(optimizer.state)}
        self._thread.submit(self._prepare, state)

    def _prepare(self, state: dict[str, Any]) -> None:
        import torch.distributed.checkpoint.state_dict  # noqa: F401 - here, so that the loop does not wait for it

        if self._config.async_save:
            self._staging.reserve(state)

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, reached: TrainPosition) -> None:
        """Start a save; returns when gradients may be computed again. Waits for the previous save first."""
        began = time.perf_counter()
        self.finish()
        save = self._save = _Save(reached.step, began)
        with self._waiting(save):
            self._attempt.emit(CheckpointStarted(self._attempt.number, reached.step))
            state = gather(model, optimizer, reached, self._world.rank) | self.more()
            # The copy runs on another stream, and must not begin before the update is computed.
            ready = torch.cuda.current_stream().record_event() if self._device.type == "cuda" else None
            save.done = self._thread.submit(self._run, save, state, ready)
            if not self._config.async_save:
                save.done.exception()

    def before_update(self) -> None:
        """Wait until the copy of the weights is complete. Raises UserError where a save has failed."""
        if self._save is None:
            return
        with self._waiting(self._save):
            self._save.staged.wait()
        if self._save.done.done():
            self._close()

    def finish(self) -> None:
        """Wait for the save in progress, if there is one."""
        if self._save is not None:
            with self._waiting(self._save):
                self._save.done.exception()
            self._close()

    def take_stall_s(self) -> float:
        """Seconds that the loop waited for checkpoints since the last call."""
        stall_s, self._stall_s = self._stall_s, 0.0
        return stall_s

    @contextmanager
    def _waiting(self, save: _Save) -> Iterator[None]:
        """Count the time of the block as a wait of the loop for this save."""
        save.waiting_since = began = time.perf_counter()
        with self._spans.span("checkpoint", step=save.step):
            yield
        waited_s = time.perf_counter() - began
        save.stall_s, save.waiting_since = save.stall_s + waited_s, None
        self._stall_s += waited_s

    def _close(self) -> None:
        save, self._save = self._save, None
        if save is not None:
            save.done.result()

    def _run(self, save: _Save, state: State, ready: torch.cuda.Event | None) -> None:
        try:
            staged = self._staging.copy(state, ready) if self._config.async_save else state
        finally:
            save.staged.set()
        with self._spans.span("checkpoint", lane=f"checkpoint-rank{self._world.rank}", step=save.step):
            self._writer.submit(self._write_out, save, staged).result()

    def _write_out(self, save: _Save, state: State) -> None:
        folder = self._attempt.run_dir.checkpoint(save.step)
        try:
            if self._world.rank == 0:
                make_room(self._attempt, folder)
            self._world.wait()  # otherwise another rank makes the folder that rank 0 is removing
            _write(state, folder, self._world)
            machine_files.collect(folder, self._world)
            if self._world.rank != 0:
                return
            # Last of all: whatever a kill leaves without a manifest is no checkpoint.
            written_bytes = layout.write_manifest(folder, save.step)
        except Exception as error:
            if self._world.rank == 0:
                with suppress(OSError):  # the error of the save is raised instead
                    removal.remove(folder)
            if cause := disk_cause(error):
                raise _disk_error(cause, disk_errno(error), folder, size_bytes(state)) from error
            raise
        now = time.perf_counter()
        stall_s = save.stall_s + (0.0 if save.waiting_since is None else now - save.waiting_since)
        self._attempt.emit(CheckpointSaved(self._attempt.number, save.step, written_bytes, stall_s, now - save.began))
        # Only here, because the older checkpoints are needed until this one is complete.
        delete_superseded(self._attempt, save.step, self._undeletable)


def _lower_priority() -> None:
    """Give the calling thread the lowest priority, not that which copies: the next optimizer step waits for the copy.

    Measured by bench/checkpoint.py on 2 cores: a step during a save takes 1.2 times its usual time, else 3 times.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _write(state: State, folder: Path, world: World) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    # One thread: in further ones DCP drops an error together with that thread's tensors (torch 2.13).
    # No fsync here: write_manifest syncs every file before it writes the manifest.
    writer = FileSystemWriter(folder, thread_count=1, sync_files=False)
    try:
        save(state, storage_writer=writer, process_group=world.saving, no_dist=world.size == 1)
    except CheckpointException as error:  # a BaseException (torch 2.13), which `except Exception` does not catch
        raise RuntimeError(f"{folder.name} could not be written") from error


def _disk_error(cause: str, number: int, folder: Path, needed_bytes: int) -> UserError:
    """The error of a save that `cause` ended. `number`: its errno; 0 if it is not known."""
    run_path = folder.parents[1]
    free_bytes = shutil.disk_usage(run_path).free
    found = explain_disk_error(number or errno.ENOSPC, run_path)
    why = f"{found.why}; it takes {needed_bytes / 1e9:.2f} GB and the disk has {free_bytes / 1e9:.2f} GB free"
    fix = f"{found.fix}; checkpoint.keep_last decides how many stay; the same command resumes from the previous one"
    return UserError(f"checkpoint {folder.name} could not be written: {cause}: {found.what}", str(folder), why, fix)
