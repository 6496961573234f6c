"""Counts the bytes of live tensors over one step of the bundled trainer, and compares them with the estimate.

On the CPU, without any allocator: a dispatch mode sees every tensor that an operation makes, autograd's saved ones
too, and a weak reference to its storage shows when it is gone. The peak over one optimizer step, the second (the
first makes the optimizer's states), is held against the terms of the estimate without the allocator's reserve.

An estimate is of a GPU, where FlashAttention separates packed documents in bf16 (varlen_on_cpu.py has it for
the CPU), and where torch fuses two things that it takes apart on a CPU: RMSNorm, which then keeps its
input alone and not what it normalised too, and log_softmax with another dtype, which then makes no copy of its input.
`measured(case)` puts operations in their place that keep what the fused ones do; `measured(case, fused=False)` is the
trainer on the CPU as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prime_train import spec
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import shape_from_run
from prime_train.estimate.values import Hardware, Term
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch
from prime_train.spec.decoder_size import CHUNKED_FROM_VOCAB
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import Training, train_step
from prime_train.trainer.model.block_changes import recompute_blocks
from prime_train.trainer.model.decoder import Decoder, build, config_of
from prime_train.trainer.model.head_loss import chunked_loss
from prime_train.trainer.muon import build_optimizer
from prime_train.trainer.parallel import World
from tests.system.trainer import varlen_on_cpu  # noqa: F401 - FlashAttention's operations, for the CPU

aten = torch.ops.aten
ALLOCATOR = "allocator reserve"  # the one term that is no tensor
ANY_GPU = Hardware("any", "any GPU with bf16", 1, 0.0, 1.0, 1.0, (9, 0))


class Case(NamedTuple):
    """One model and batch to take a step with."""

    name: str
    run: RunSpec
    vocab_size: int


class Measured(NamedTuple):
    """Bytes of live tensors: before the step (weights and optimizer states), at its highest moment, after it."""

    resident: int
    peak: int
    after: int


class LiveTensors(TorchDispatchMode):
    """Adds up the storages that are alive, after each operation. `peak` is the highest sum."""

    def __init__(self, tensors: Iterator[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._met: dict[int, tuple[StorageWeakRef, int]] = {}
        self._at_most = 0  # bytes alive, and of storages that may be gone since they were last looked at
        for tensor in tensors:
            self._meet(tensor)
        self.peak = self.resident = self.bytes()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._meet(leaf)
        if self._at_most > self.peak:  # else there is no higher peak, and no need to look at each
            self.peak = max(self.peak, self.bytes())
        return made

    def bytes(self) -> int:
        self._met = {key: held for key, held in self._met.items() if not held[0].expired()}  # type: ignore[no-untyped-call]
        self._at_most = sum(size for _, size in self._met.values())
        return self._at_most

    def _meet(self, tensor: Tensor) -> None:
        """A weak reference keeps the address of its storage taken, so that the address identifies the storage."""
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        if tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        if weak.cdata not in self._met:
            self._met[weak.cdata] = (weak, storage.nbytes())
            self._at_most += storage.nbytes()


class _ZeroProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives zeros for matrix products in bf16, because a processor without instructions for them takes minutes.

    Which tensors live depends on no value of them.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (aten.mm.default, aten.mm.out, aten.bmm.default) and args[0].dtype == torch.bfloat16:
            left, right = args
            return kwargs["out"].zero_() if kwargs else left.new_zeros((*left.shape[:-1], right.shape[-1]))
        return function(*args, **(kwargs or {}))


def cases() -> tuple[Case, ...]:
    """Small decoders whose peaks lie in different phases, in fp32 and under autocast."""
    deep = spec.Model(layers=8, hidden_size=128, heads=4, mlp_size=352, tie_embeddings=True)
    grouped = spec.Model(
        layers=4, hidden_size=192, heads=6, kv_heads=2, mlp_size=512, tie_embeddings=False, qk_norm=True
    )
    wide = spec.Model(layers=2, hidden_size=256, heads=8, kv_heads=4, mlp_size=704, tie_embeddings=True)
    shapes = (
        ("deep and tied", deep, 2048, (8, 8), 128),
        ("grouped heads and their norms, two micro-batches", grouped, 2048, (4, 8), 128),
        ("wide vocabulary", wide, 16384, (4, 4), 128),
        ("large weights, small micro-batches", wide, 16384, (1, 2), 64),
        ("long rows", deep, 2048, (2, 2), 512),
    )
    return tuple(
        Case(f"{name}, {compute}", _run(model, batch, compute, ctx_tokens), vocab_size)
        for name, model, vocab_size, batch, ctx_tokens in shapes
        for compute in ("fp32", "bf16")
    )


def saving_cases() -> tuple[Case, ...]:
    """The first of `cases` with the settings that save memory, and a vocabulary whose loss is computed in chunks."""
    settings: tuple[tuple[str, dict[str, Any], spec.Optim], ...] = (
        ("all blocks recomputed", {"recompute": "full"}, spec.Optim()),
        ("every other block recomputed", {"recompute": "full", "recompute_every": 2}, spec.Optim()),
        ("products kept", {"recompute": "selective"}, spec.Optim()),
        ("Muon", {}, spec.Optim(kind="muon")),
    )
    small = spec.Model(layers=2, hidden_size=128, heads=4, mlp_size=352, tie_embeddings=True)
    in_chunks = (
        Case(f"loss in chunks, {compute}", _run(small, (4, 4), compute, 1024), CHUNKED_FROM_VOCAB)
        for compute in ("fp32", "bf16")
    )
    return (
        *(
            Case(f"{name}, {case.name}", replace(case.run, model=replace(case.run.model, **model), optim=optim), 2048)
            for name, model, optim in settings
            for case in cases()[:2]
        ),
        *in_chunks,
    )


def _run(model: spec.Model, batch: tuple[int, int], compute: Any, ctx_tokens: int) -> RunSpec:
    return RunSpec(
        run=spec.Run(name="live", max_steps=2),
        model=model,
        data=spec.Data(sources=(spec.Source(kind="python-stdlib"),), ctx_tokens=ctx_tokens),
        batch=spec.Batch(micro_batch=batch[0], global_batch=batch[1]),
        precision=spec.Precision(compute=compute),
    )


def estimated(case: Case, hardware: Hardware = ANY_GPU) -> tuple[Term, ...]:
    """The terms of the estimate that are tensors."""
    memory = training_memory(setup_of(case.run, hardware, shape_from_run(case.run, case.vocab_size)), hardware)
    return tuple(term for term in memory.terms if term.name != ALLOCATOR)


def measured(case: Case, *, fused: bool = True) -> Measured:
    """The live tensors of the second step of the real trainer, on the CPU."""
    training = training_of(case, torch.device("cpu"))
    micro_batches = batches(case)
    return measure_step(training, lambda: train_step(training, micro_batches, lr=1e-4), fused=fused)


def measure_step(training: Training, take: Callable[[], object], *, fused: bool = True) -> Measured:
    """The live tensors of the second call of `take`, which takes a step."""
    is_bf16 = training.device.compute == "bf16"
    products = _ZeroProducts() if is_bf16 else contextlib.nullcontext()  # type: ignore[no-untyped-call]
    with products, fused_operations() if fused else contextlib.nullcontext():
        take()
        live = LiveTensors(_resident(training))
        with live:
            take()
    return Measured(live.resident, live.peak, live.bytes())


@contextlib.contextmanager
def fused_operations() -> Iterator[None]:
    """RMSNorm and log_softmax keep what torch's fused CUDA operations keep."""
    with patch.object(nn.RMSNorm, "forward", _norm), patch.object(torch, "log_softmax", _log_softmax):
        yield


class _FusedNorm(torch.autograd.Function):
    """y = x / rms(x) * weight over the last dimension. Keeps x and one number per row, as aten::_fused_rms_norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        inverse = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        normal = x * inverse
        of_weight = (gradient * normal).flatten(0, -2).sum(0)
        scaled = gradient * weight
        along = (scaled * normal).mean(-1, keepdim=True)
        return scaled.sub_(normal.mul_(along)).mul_(inverse), of_weight, None


def _norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    if x.dtype != norm.weight.dtype:  # not fused on a GPU either
        return F.rms_norm(x, norm.normalized_shape, norm.weight, norm.eps)
    return cast(Tensor, _FusedNorm.apply(x, norm.weight, norm.eps))  # type: ignore[no-untyped-call]


def _log_softmax(logits: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """log_softmax of 16-bit logits without an fp32 copy beside the result. The loss calls it without autograd."""
    made = torch.empty(logits.shape, dtype=dtype).copy_(logits)
    return made.sub_(made.logsumexp(dim, keepdim=True))


def training_of(case: Case, device: torch.device) -> Training:
    run = case.run
    model: Decoder = build(config_of(run.model, case.vocab_size), run.run.seed, device)
    recompute_blocks(model, run.model)
    if case.vocab_size >= CHUNKED_FROM_VOCAB:  # as choose_loss on a GPU
        model.head_loss = chunked_loss
    bf16 = run.precision.compute == "bf16"
    chosen = Device(device, str(device), "bf16" if bf16 else "fp32", None, flash_attention=bf16)
    return Training(model, build_optimizer(model, run.optim), World(rank=0, size=1), chosen, run.optim.clip_norm)


def batches(case: Case) -> list[MicroBatch]:
    """The micro-batches of a step: random tokens, two documents in each row, as packing makes them."""
    run, draw = case.run, torch.Generator().manual_seed(7)
    rows, ctx_tokens = run.batch.micro_batch, run.data.ctx_tokens
    made = []
    for _ in range(global_batch(run) // rows):
        tokens = torch.randint(0, case.vocab_size, (rows, ctx_tokens + 1), generator=draw)
        half = ctx_tokens // 2
        positions = (torch.arange(ctx_tokens) % half).repeat(rows, 1)
        documents = (torch.arange(ctx_tokens) // half).repeat(rows, 1)
        made.append(MicroBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), positions, documents))
    return made


def _resident(training: Training) -> Iterator[Tensor]:
    """Weights and the optimizer's states."""
    yield from training.model.parameters()
    for state in training.optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))
