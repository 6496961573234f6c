"""The host waits for the device once in an optimizer step: where it reads the numbers of the step before.

Counted without a GPU. `Queued` stands for a tensor of a GPU: it computes on the CPU, but its device is another one, so
that each operation between host and device is visible. A wait is what torch's sync debug mode warns of
(torch.cuda.set_sync_debug_mode; c10/cuda/CUDAFunctions.h, memcpy_and_sync and stream_synchronize):

- a value that the host asks for: item, tolist, float, bool, equal;
- an output whose size depends on values: nonzero, unique, masked_select, an index or a mask of booleans;
- a copy in either direction, unless it goes through pinned memory as in device_copy.py;
- an operation that copies an operand of the host first. A 0-d operand is an argument of the kernel, where the operation
  has two operands of which the device broadcasts one.

To that comes the wait for the event after the copy of what a step has measured, which the mode does not report. A
pinned buffer is waited for too, until the copy before the last one has left it; but that copy is on a stream of its
own, behind no kernel. What a kernel does inside is not seen: grouped_mm copies its offsets to the host, unless it has a
kernel for the GPU and type (bf16 on sm_90 and later, torch 2.13), and a collective of gloo waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from prime_train import spec
from prime_train.events import Progress
from prime_train.trainer import build, parallel
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.device import Device, HostCopy, copy_to_device, copy_to_host
from prime_train.trainer.loops import pretrain, spikes, step
from prime_train.trainer.loops.spikes import WINDOW_STEPS, Spikes
from prime_train.trainer.loops.step import Training, launch_step, loss_sum
from prime_train.trainer.model import attention
from prime_train.trainer.model.block_changes import recompute_blocks
from prime_train.trainer.model.decoder import Decoder
from prime_train.trainer.model.experts import find_routers
from prime_train.trainer.model.head_loss import chunked_loss
from prime_train.trainer.muon import build_optimizer
from prime_train.trainer.parallel import World
from prime_train.trainer.saves.checkpoint import Checkpointer
from tests.unit.trainer import tiny
from tests.unit.trainer.families import ROUTED, loud

aten = torch.ops.aten
GPU = torch.device("meta")  # any device that torch lets a tensor class claim without a driver

_ASKS_FOR_VALUES = (aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.allclose)
_HAS_A_SIZE_OF_VALUES = (
    *(aten.nonzero, aten.masked_select, aten.repeat_interleave, aten.bincount),
    *(aten._unique2, aten.unique_dim, aten.unique_consecutive),
)
_INDEXES = (aten.index, aten.index_put, aten.index_put_)
_TAKES_A_HOST_SCALAR = (
    *(aten.add, aten.add_, aten.sub, aten.sub_, aten.mul, aten.mul_, aten.div, aten.div_, aten.pow),
    *(aten.lt, aten.le, aten.gt, aten.ge, aten.eq, aten.ne, aten.fill_, aten.masked_fill, aten.masked_fill_),
)


class Queued(Tensor):
    """A tensor of the GPU. `held` has the values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Queued:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=GPU
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return Waits.current.dispatch(function, args, kwargs or {})


class Waits:
    """Counts the waits in a block, each by the name of what waits."""

    current: Waits

    def __init__(self) -> None:
        self.names: list[str] = []
        Waits.current = self

    @contextmanager
    def counted(self) -> Iterator[None]:
        with _Constructors(self), _Operations(self):
            yield

    def take(self) -> list[str]:
        names, self.names = self.names, []
        return names

    def dispatch(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute an operation on the CPU; count it where it would make the host wait."""
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        queued = {id(leaf.held): leaf for leaf in leaves if isinstance(leaf, Queued)}
        target = kwargs.get("device")
        to_gpu = target is not None and torch.device(target) == GPU
        if not queued and not to_gpu:
            return function(*args, **kwargs)
        to_host = target is not None and not to_gpu
        on_host = [leaf for leaf in leaves if not isinstance(leaf, Queued)]
        packet = function.overloadpacket
        if (
            to_host
            or packet in _ASKS_FOR_VALUES
            or packet in _HAS_A_SIZE_OF_VALUES
            or any(leaf.ndim > 0 or packet not in _TAKES_A_HOST_SCALAR for leaf in on_host)
            or (packet in _INDEXES and any(index is not None and index.dtype == torch.bool for index in args[1]))
        ):
            self.names.append(str(function))
        made = function(*_hold(args), **_hold({**kwargs, "device": "cpu"} if target is not None else kwargs))
        if to_host:
            return made
        # An operation in place returns its argument; anything else is a tensor of the GPU again.
        return tree_map(lambda leaf: queued.get(id(leaf), Queued(leaf)) if isinstance(leaf, Tensor) else leaf, made)


def _hold(values: Any) -> Any:
    return tree_map(lambda leaf: leaf.held if isinstance(leaf, Queued) else leaf, values)


class _Operations(TorchDispatchMode):
    def __init__(self, waits: Waits) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._waits = waits

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._waits.dispatch(function, args, kwargs or {})


class _Constructors(TorchFunctionMode):
    """What copies Python numbers to the GPU, and tolist, which torch has for no tensor class."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == GPU:
            self._waits.names.append(function.__name__)
            return Queued(function(*args, **{**kwargs, "device": "cpu"}))
        if function is Tensor.tolist and isinstance(args[0], Queued):
            self._waits.names.append("tolist")
            return args[0].held.tolist()
        return function(*args, **kwargs)


class QueueDevice(Device):
    """The GPU, whose name torch.autocast does not know."""

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True)
class Copied:
    """The event after a copy to the host."""

    waits: Waits

    def synchronize(self) -> None:
        self.waits.names.append("read")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Counts the waits in `counted()`. Copies through pinned memory, which needs a driver, are none of them."""
    counted = Waits()

    def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        return [Queued(tensor.clone()) for tensor in tensors] if device == GPU else copy_to_device(tensors, device)

    def to_host(tensor: Tensor) -> HostCopy:
        assert isinstance(tensor, Queued)
        return HostCopy(tensor.held.clone(), cast(Any, Copied(counted)))

    for module in (attention, spikes):
        monkeypatch.setattr(module, "copy_to_device", to_device)
    monkeypatch.setattr(step, "copy_to_host", to_host)
    monkeypatch.setattr(import_module("torch.optim.adam"), "_device_dtype_check_for_fused", lambda *_, **__: None)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    return counted


def move(model: nn.Module) -> None:
    """The weights and buffers of a model to the GPU."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(Queued(weight.detach()), requires_grad=weight.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Queued(buffer)


def queue(model: Decoder, optim: spec.Optim) -> Training:
    """The training of a model on the GPU, and by the norms of steps before."""
    move(model)
    judged = Spikes(optim.on_spike)
    judged.norms.extend([1.0, 1.1] * (WINDOW_STEPS // 2) if optim.on_spike == "skip" else [])
    routers = find_routers(model, 0.1, 0.1)
    device = QueueDevice(GPU, "GPU", "fp32", None, read_behind_steps=1)
    return Training(
        model, build_optimizer(model, optim), World(0, 1), device, 1.0, spikes=judged, reduce="each", routers=routers
    )


def test_tensors_stay_where_they_are_on_a_cpu() -> None:
    tensors = [torch.arange(3), torch.ones(2, 2)]
    copied = copy_to_device(tensors, torch.device("cpu"))
    assert [tensor.data_ptr() for tensor in copied] == [tensor.data_ptr() for tensor in tensors]
    assert copy_to_host(tensors[0]).wait() is tensors[0]


WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "if": lambda x: 1 if x.sum() > 0 else 2,
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "unique": lambda x: torch.unique(x),
    "torch.tensor": lambda x: torch.tensor(1.0, device=x.device),
    "a tensor of the host": lambda x: torch.ones(3).to(x.device),
    "an index of the host": lambda x: x[torch.tensor([0, 2])],
    "a choice with a scalar of the host": lambda x: torch.where(x > 0, x, torch.tensor(1.0)),
    "copy_": lambda x: torch.ones(3).copy_(x),
}
NOT_WAITING: dict[str, Callable[[Tensor], object]] = {
    "full": lambda x: torch.full((), 1.0, device=x.device),
    "arithmetic": lambda x: (2 * x + 1).clamp(max=1).masked_fill(x > 0, 3.0),
    "an index": lambda x: x[torch.zeros(2, dtype=torch.int64, device=x.device)],
    "a slice": lambda x: x[1:].zero_(),
    "a choice with a number": lambda x: torch.where(x > 0, x, 1.0),
    "unbind": lambda x: [part + 1 for part in x],
}


@pytest.mark.parametrize("what", WAITING)
def test_what_waits_is_counted(waits: Waits, what: str) -> None:
    with waits.counted():
        WAITING[what](Queued(torch.arange(3.0)))
    assert len(waits.take()) == 1


@pytest.mark.parametrize("what", NOT_WAITING)
def test_what_does_not_wait_is_not_counted(waits: Waits, what: str) -> None:
    with waits.counted():
        NOT_WAITING[what](Queued(torch.arange(3.0)))
    assert waits.take() == []


def _recomputed() -> Decoder:
    model = tiny.decoder()
    recompute_blocks(model, spec.Model(recompute="selective"))
    return model


def _in_chunks() -> Decoder:
    model = tiny.decoder()
    model.head_loss = chunked_loss
    return model


STEPS: dict[str, tuple[Callable[[], Decoder], spec.Optim]] = {
    "AdamW": (tiny.decoder, spec.Optim()),
    "Muon": (tiny.decoder, spec.Optim(kind="muon")),
    "spikes": (tiny.decoder, spec.Optim(on_spike="skip")),
    "Muon and spikes": (tiny.decoder, spec.Optim(kind="muon", on_spike="skip")),
    "experts": (lambda: loud(replace(ROUTED, router="sigmoid")), spec.Optim(on_spike="skip")),
    "recompute": (_recomputed, spec.Optim()),
    "loss in chunks": (_in_chunks, spec.Optim()),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_waits_where_it_is_read_and_nowhere_else(waits: Waits, name: str) -> None:
    """With three micro-batches, and also in the first step, which makes the moments."""
    make, optim = STEPS[name]
    training, plain = queue(make(), optim), make()
    results = []
    for number in range(3):
        with waits.counted():
            launched = launch_step(training, [tiny.batch(10 * number + part) for part in range(3)], 1e-3, loss_sum)
        assert waits.take() == []
        results.append(launched.read())
        assert waits.take() == ["read"]
    assert all(result.loss > 0 and result.grad_norm > 0 for result in results)
    weight = training.model.get_parameter("embedding.weight")
    assert isinstance(weight, Queued)
    assert torch.equal(weight.held, plain.embedding.weight) == all(result.skipped for result in results)


def test_a_loss_that_is_looked_at_is_found(waits: Waits) -> None:
    def looked_at(model: nn.Module, batch: Any, device: Device) -> Tensor:
        loss = loss_sum(model, batch, device)
        return loss if loss.isfinite() else 2 * loss

    training = queue(tiny.decoder(), spec.Optim())
    with waits.counted():
        launch_step(training, [tiny.batch(1)], 1e-3, looked_at)
    assert waits.take() == ["aten._local_scalar_dense.default"]


def test_the_loop_waits_once_in_a_step_for_the_one_before(
    waits: Waits, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny.run_spec(
        texts,
        run=spec.Run(name="tiny", max_steps=6, seed=7),
        batch=spec.Batch(micro_batch=2, global_batch=4),
        optim=spec.Optim(on_spike="skip"),
        checkpoint=spec.Checkpoint(interval_steps=None),
        eval=spec.Eval(interval_steps=None, held_out_ratio=0.1, batches=3),
    )
    happened: list[str] = []
    set_up, launch, train = build.set_up_training, step.launch_step, pretrain._train

    def set_up_queued(*given: Any) -> Any:
        training, reached = set_up(*given)
        return queue(parallel.unwrap_decoder(training.model), run.optim), reached

    def launch_and_note(*given: Any, **options: Any) -> Any:
        happened.extend(waits.take())
        launched = launch(*given, **options)
        happened.extend([*waits.take(), "launch"])
        return launched

    def train_counted(*given: Any) -> None:
        with waits.counted():
            train(*given)

    monkeypatch.setattr(build, "set_up_training", set_up_queued)
    monkeypatch.setattr(pretrain, "_train", train_counted)
    monkeypatch.setattr(pretrain, "launch_step", launch_and_note)
    # What comes after the last step reads all weights.
    monkeypatch.setattr(Checkpointer, "save", lambda *_: happened.extend(waits.take()))
    monkeypatch.setattr(pretrain, "finish", lambda *_: None)
    run_dir = tiny.prepare(tmp_path / "run", run)
    attempt: Attempt = tiny.attempt(run_dir, run)
    pretrain.main(attempt, StopFlag(run_dir.stop_request(1)))
    assert happened == ["launch", "launch", "read", *["launch", "read"] * 4, "read"]
    assert [line["step"] for line in tiny.metrics(run_dir)] == list(range(1, 7))
    assert [event.step for event in tiny.events(run_dir) if isinstance(event, Progress)][-1] == 6
