"""Estimates the memory of each role of a run, whether it fits, and how two roles share one GPU. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.estimate.calibrate import Calibration, calibrate_memory
from prime_train.estimate.memory.colocation import Sharing, SharingRequest, share, window_of
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.serving.server_memory import ServeMemory, inference_memory
from prime_train.estimate.serving.server_setup import ServeSetup, serve_setup_of
from prime_train.estimate.values import Hardware, RoleMemory
from prime_train.spec import RunSpec
from prime_train.spec.prime_rl_parts import Rollout


class Gpus(NamedTuple):
    """The GPUs of a run per role. `shared`: trainer and server run on the same GPUs."""

    train: int
    serve: int
    shared: bool = False

    @property
    def all(self) -> int:
        return max(self.train, self.serve) if self.shared else self.train + self.serve


class Role(NamedTuple):
    """Memory of one role on each of its GPUs. `headroom_bytes` is negative if it does not fit; `served` is set for
    inference only."""

    memory: RoleMemory
    fits: bool
    headroom_bytes: float
    served: ServeMemory | None = None


class Memory(NamedTuple):
    """All roles of a run. `enough_gpus`: the hardware has as many GPUs as the run needs. `sharing`: set if roles share
    a GPU."""

    gpus: Gpus
    roles: tuple[Role, ...]
    enough_gpus: bool
    sharing: Sharing | None = None

    @property
    def fits(self) -> bool:
        return self.enough_gpus and all(role.fits for role in self.roles)


def gpus_of(run: RunSpec, hardware: Hardware) -> Gpus:
    """The GPUs that train and serve by the config; without a number in the config, training takes all other GPUs."""
    train = run.train_gpus
    return Gpus(max(1, hardware.gpus - run.server_gpus) if train is None else train, run.server_gpus, run.shares_gpus)


def memory_of(
    run: RunSpec, hardware: Hardware, shape: ModelShape, calibration: Calibration | None = None
) -> tuple[Memory, TrainSetup | None]:
    """The memory of every role, and the training's setup, None without a training."""
    gpus = gpus_of(run, hardware)
    setup = setup_of(run, hardware, shape) if gpus.train else None
    server = serve_setup_of(run, hardware, shape) if gpus.serve else None
    roles: list[Role] = []
    if setup is not None:
        trained = calibrate_memory(training_memory(setup, hardware), calibration)
        headroom = hardware.usable_bytes - trained.needed_bytes
        roles.append(Role(trained, headroom >= 0, headroom))
    if server is not None:
        served = inference_memory(server, hardware)
        headroom = hardware.usable_bytes - served.memory.needed_bytes
        on_all = served.memory._replace(gpus=gpus.serve)  # every replica needs the same on its GPUs
        roles.append(Role(on_all, headroom >= 0 and served.starts, headroom, served))
    memory = Memory(gpus, tuple(roles), gpus.all <= hardware.gpus)
    if gpus.shared and setup is not None and server is not None:
        memory = _share(run, hardware, memory, setup, server)
    return memory, setup


def _share(run: RunSpec, hardware: Hardware, memory: Memory, setup: TrainSetup, server: ServeSetup) -> Memory:
    """The memory of two roles on one GPU. Both report the same headroom; the fraction must lie in the window."""
    rollout = run.rollout or Rollout()

    def trainer(ctx_tokens: int) -> RoleMemory:
        tokens = max(1, setup.tokens * ctx_tokens // setup.ctx_tokens)
        return training_memory(setup._replace(ctx_tokens=ctx_tokens, tokens=tokens), hardware)

    if run.inference is None or not run.inference.ctx_tokens:
        server = server._replace(ctx_tokens=setup.ctx_tokens)
    request = SharingRequest(server, hardware, trainer, rollout.batch_rollouts, rollout.group_size)
    window = window_of(request, server.ctx_tokens)
    fits = window.is_open and window.smallest <= server.gpu_memory_fraction <= window.largest
    left = hardware.usable_bytes - sum(role.memory.needed_bytes for role in memory.roles)
    roles = tuple(role._replace(fits=fits and role.fits, headroom_bytes=left) for role in memory.roles)
    return memory._replace(roles=roles, sharing=share(request))
