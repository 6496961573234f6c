"""Packed pieces attend to themselves alone, by a plan that never holds T x T positions of long rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prime_train.spec.decoder_size import DENSE_BELOW
from prime_train.trainer.batch import IGNORED, MicroBatch
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import loss_sum
from prime_train.trainer.model import attention
from prime_train.trainer.model.attention import (
    Pieces,
    Plan,
    attend,
    block_causal_mask,
    move_plan,
    plan_attention,
    plan_shared_prompts,
)
from prime_train.trainer.model.decoder import Block, Decoder, build
from prime_train.trainer.model.rotary import rotations
from prime_train.trainer.rl.batch import to_policy_batch
from tests.system.trainer.varlen_on_cpu import GPU, varlen_of_2_11
from tests.unit.trainer import tiny

EXACT_GPU = replace(GPU, compute="fp32")  # the plan of a GPU, without its rounding
HOW = pytest.mark.parametrize("device", [tiny.CPU, EXACT_GPU], ids=["CPU", "GPU"])


def document_numbers(rows: list[list[int]]) -> Tensor:
    """(B, T) of rows of pieces with these lengths."""
    return torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in rows])


def packed(rows: list[list[int]]) -> MicroBatch:
    """Rows of documents of these lengths; the last of each row is its padding."""
    documents = document_numbers(rows)
    tokens = torch.randint(0, tiny.CONFIG.vocab_size, documents.shape, generator=torch.Generator().manual_seed(0))
    labels = tokens.roll(-1, 1)
    for row, lengths in enumerate(rows):
        labels[row, torch.tensor(lengths).cumsum(0) - 1] = IGNORED
        labels[row, sum(lengths[:-1]) :] = IGNORED
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in rows])
    return MicroBatch(tokens, labels, positions, documents)


def separate(batch: MicroBatch, rows: list[list[int]]) -> list[MicroBatch]:
    """Each document of a packed batch as a batch of its own."""
    made = []
    for row, lengths in enumerate(rows):
        for end, length in zip(torch.tensor(lengths).cumsum(0).tolist(), lengths[:-1], strict=False):
            at = (slice(row, row + 1), slice(end - length, end))
            made.append(MicroBatch(batch.tokens[at], batch.labels[at], batch.positions[at], batch.documents[at]))
    return made


def loud(decoder: Decoder) -> Decoder:
    """The decoder with weights that are large enough for attention to be far from uniform."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.normal_(1.0 if weight.ndim < 2 else 0.0, 0.1, generator=generator)
    return decoder


def mean_loss(decoder: Decoder, batches: list[MicroBatch], device: Device) -> tuple[Tensor, list[Tensor]]:
    """The loss per labelled token, and its gradient for each weight."""
    losses = torch.stack([loss_sum(decoder, batch, device) for batch in batches])
    loss = losses.sum() / sum(batch.labelled_tokens for batch in batches)
    return loss.detach(), list(torch.autograd.grad(loss, list(decoder.parameters())))


ROWS = {
    256: [[100, 1, 55, 90, 10], [255, 1], [30] * 8 + [16]],
    2048: [[900, 500, 300, 148, 100, 60, 30, 5, 3, 2], [128] * 16],
    8192: [[2000, 1500, 1000, 900, 800, 700, 600, 300, 200, 100, 60, 20, 5, 3, 4]],
}


@HOW
@pytest.mark.parametrize("ctx_tokens", [256, 2048, pytest.param(8192)])
def test_packed_documents_have_the_loss_and_the_gradients_of_separate_ones(ctx_tokens: int, device: Device) -> None:
    decoder, rows = loud(build(tiny.CONFIG, 0)), ROWS[ctx_tokens]
    together = packed(rows)
    assert together.tokens.shape == (len(rows), ctx_tokens)
    loss, gradients = mean_loss(decoder, [together], device)
    expected_loss, expected = mean_loss(decoder, separate(together, rows), tiny.CPU)
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-5)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-5)


class Sizes(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.largest = max([self.largest, *sizes])
        return made


def squares_a_row(batch: MicroBatch, device: Device) -> bool:
    """Whether an operation of a forward and backward returns as many elements as the square of a row."""
    decoder = build(tiny.CONFIG, 0)
    with Sizes() as sizes:
        torch.autograd.backward(loss_sum(decoder, batch, device))
    assert sizes.largest > 0
    positions = int(batch.tokens.shape[1])
    return bool(sizes.largest >= positions**2)


@HOW
@pytest.mark.parametrize("lengths", [[256, 200, 40, 10, 6], [510, 1, 1], [2] * 256], ids=["some", "long", "tiny"])
def test_no_tensor_of_a_step_has_the_square_of_a_long_row(device: Device, lengths: list[int]) -> None:
    batch = packed([lengths])
    assert batch.tokens.shape[1] == DENSE_BELOW
    assert not squares_a_row(batch, device)


def test_a_dense_mask_would_be_seen() -> None:
    assert squares_a_row(packed([[60, 50, 17]]), tiny.CPU)


@HOW
def test_no_tensor_of_a_long_shared_prompt_has_the_square_of_its_row(device: Device) -> None:
    parts = torch.tensor([[0] * 112 + [1] * 200 + [2] * 190 + [-1] * 10])
    query, key = torch.randn(1, 512, 2, 16, requires_grad=True), torch.randn(1, 512, 1, 16, requires_grad=True)
    with Sizes() as sizes:
        torch.autograd.backward(attend(query, key, key, plan_shared_prompts(parts, device)).sum())
    assert sizes.largest < 512**2


@st.composite
def rows_of_pieces(draw: st.DrawFn, ctx_tokens: int) -> list[list[int]]:
    """One to three rows of ctx_tokens positions, cut anywhere."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = draw(st.lists(st.integers(1, ctx_tokens - 1), max_size=40, unique=True))
        rows.append([end - start for start, end in pairwise([0, *sorted(cuts), ctx_tokens])])
    return rows


def mask_of(plan: Pieces, positions: int) -> Tensor:
    """What a plan lets attend, (B x T, B x T): each piece or block of it in its place."""
    whole = torch.zeros(positions, positions, dtype=torch.bool)
    if plan.ends is not None:
        for start, end in pairwise(plan.ends.tolist()):
            whole[start:end, start:end] = torch.ones(end - start, end - start).tril()
        return whole
    start = 0
    for length, mask in zip(plan.blocks, plan.masks, strict=True):
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        whole[start : start + length, start : start + length] = causal if mask is None else mask
        start += length
    return whole


@settings(deadline=None, max_examples=30)
@given(rows=rows_of_pieces(DENSE_BELOW))
def test_the_plans_of_both_devices_are_the_mask(rows: list[list[int]]) -> None:
    documents = document_numbers(rows)
    expected = torch.block_diag(*block_causal_mask(documents)[:, 0]).bool()  # type: ignore[no-untyped-call]
    for device in (tiny.CPU, GPU):
        plan = plan_attention(documents, None, device)
        if max(map(len, rows)) == 1:
            assert plan is None
        else:
            assert isinstance(plan, Pieces)
            assert torch.equal(mask_of(plan, documents.numel()), expected)


@settings(deadline=None, max_examples=30)
@given(rows=rows_of_pieces(1024))
def test_a_micro_batch_of_usual_pieces_has_the_bounds_of_any_other(rows: list[list[int]]) -> None:
    plan = plan_attention(document_numbers([*rows, [512, 512]]), None, GPU)
    assert isinstance(plan, Pieces)
    assert plan.ends is not None
    pieces, usual = sum(map(len, rows)) + 2, 4 * (len(rows) + 1)
    assert plan.longest == 1024
    assert plan.ends.dtype == torch.int32
    assert len(plan.ends) - 1 in (usual * 2**doubled for doubled in range(8))
    assert len(plan.ends) - 1 == usual or pieces > usual


@HOW
@pytest.mark.parametrize("ctx_tokens", [64, 1024])
def test_a_plan_and_its_micro_batch_move_together(ctx_tokens: int, device: Device) -> None:
    """The device "meta" holds no values, so no tensor of it was forgotten on the CPU."""
    labels, parts = torch.zeros(1, ctx_tokens, dtype=torch.int64), torch.ones(1, ctx_tokens, dtype=torch.int64)
    parts[0, : ctx_tokens // 2], parts[0, -ctx_tokens // 4 :] = 0, 2
    for plan in (None, plan_attention(parts, None, device), plan_shared_prompts(parts, device)):
        moved, others = move_plan(plan, (labels, parts.float()), torch.device("meta"))
        assert [(one.dtype, one.device.type) for one in others] == [(torch.int64, "meta"), (torch.float32, "meta")]
        assert describe(moved) == [(shape, kind, "meta") for shape, kind, _ in describe(plan)]
        if isinstance(plan, Pieces):
            assert isinstance(moved, Pieces)
            assert (moved.blocks, moved.longest) == (plan.blocks, plan.longest)


def describe(plan: Plan) -> list[tuple[torch.Size, torch.dtype, str]]:
    fields = (*plan.masks, plan.ends, plan.source, plan.kept) if isinstance(plan, Pieces) else (plan,)
    return [(field.shape, field.dtype, field.device.type) for field in fields if field is not None]


def test_short_pieces_share_calls() -> None:
    plan = plan_attention(document_numbers([[700, 150, 40, 2, 100, 32]]), None, tiny.CPU)
    assert isinstance(plan, Pieces)
    assert plan.blocks == (700, 192, 132)
    assert [mask is None for mask in plan.masks] == [True, False, False]


def test_a_short_row_on_a_cpu_has_a_dense_mask() -> None:
    documents = document_numbers([[4, 4]])
    plan = plan_attention(documents, torch.zeros_like(documents), tiny.CPU)
    assert isinstance(plan, Tensor)
    assert torch.equal(plan[0, 0], torch.kron(torch.eye(2), torch.ones(4, 4).tril()).bool())
    assert isinstance(plan_attention(documents, None, GPU), Pieces)


@HOW
@pytest.mark.parametrize("ctx_tokens", [16, 600])
def test_a_row_of_one_document_and_padding_needs_no_plan(ctx_tokens: int, device: Device) -> None:
    rows = [[9, ctx_tokens - 9], [ctx_tokens - 1, 1]]
    batch = packed(rows)
    assert plan_attention(batch.documents, batch.labels, device) is None
    decoder = loud(build(tiny.CONFIG, 0))
    with torch.no_grad():
        fast = decoder(batch.tokens, batch.positions, None)
        masked = decoder(batch.tokens, batch.positions, block_causal_mask(batch.documents))
    torch.testing.assert_close(fast[:, :9], masked[:, :9], rtol=0, atol=1e-5)


def test_every_query_sees_at_least_itself() -> None:
    assert bool(block_causal_mask(document_numbers([[3, 1, 2, 4]])).any(-1).all())


def draw_heads(positions: int, width: int, rows: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of 6 heads, keys and values of 2, with gradients."""
    generator = torch.Generator().manual_seed(1)
    shape = (rows, positions, 2, width)
    query = torch.randn(rows, positions, 6, width, generator=generator, requires_grad=True)
    key, value = (torch.randn(shape, generator=generator, requires_grad=True) for _ in range(2))
    return query, key, value


def plans_of_both_sizes() -> dict[str, tuple[Plan, int]]:
    """Plans of two rows, and the positions of a row."""
    short, long = [[3, 2], [5]], [[300, 150, 40, 22], [512]]
    return {
        "causal": (None, 5),
        "dense": (plan_attention(document_numbers(short), None, tiny.CPU), 5),
        "blocks": (plan_attention(document_numbers(long), None, tiny.CPU), 512),
        "ends": (plan_attention(document_numbers(long), None, EXACT_GPU), 512),
    }


@pytest.mark.parametrize("width", [16, 12])
@pytest.mark.parametrize("name", plans_of_both_sizes())
def test_grouped_heads_share_keys_and_values(name: str, width: int) -> None:
    plan, positions = plans_of_both_sizes()[name]
    query, key, value = draw_heads(positions, width)
    grouped = attend(query, key, value, plan)
    repeated = attend(query, key.repeat_interleave(3, 2), value.repeat_interleave(3, 2), plan)
    torch.testing.assert_close(grouped, repeated)
    ours = torch.autograd.grad(grouped.square().sum(), (query, key, value))
    theirs = torch.autograd.grad(repeated.square().sum(), (query, key, value))
    torch.testing.assert_close(ours, theirs)


def test_torch_has_the_flag_for_shared_heads_from_2_12_on() -> None:
    assert (Version(torch.__version__) >= Version("2.12")) == attention._HAS_SHARING_FLAG


@pytest.fixture
def unasked() -> Iterator[None]:
    """No kernel was asked yet, and none of this test will be believed later."""
    attention._shares_heads.cache_clear()
    yield
    attention._shares_heads.cache_clear()


def refuse(error: type[Exception]) -> Callable[[Tensor, int], Tensor]:
    def share(shared: Tensor, times: int) -> Tensor:
        raise error(f"expected {times * shared.shape[1]} heads")

    return share


SHARES = {
    "repeated": lambda shared, times: shared.repeat_interleave(times, 1),
    "another order": lambda shared, times: shared.repeat(1, times, 1),
    "RuntimeError": refuse(RuntimeError),
    "ValueError": refuse(ValueError),
}


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("width", [16, 12])
@pytest.mark.parametrize("name", SHARES)
def test_a_kernel_without_the_flag_gets_repeated_heads_unless_it_shares_them(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, (query, key, value) = document_numbers([[300, 150, 40, 22], [512]]), draw_heads(512, width)
    expected = attend(query, key, value, plan_attention(documents, None, tiny.CPU))
    theirs = torch.autograd.grad(expected.square().sum(), (query, key, value))
    monkeypatch.setattr(attention, "_HAS_SHARING_FLAG", False)
    monkeypatch.setattr(attention, "varlen_attn", varlen_of_2_11(SHARES[name]))
    plan = plan_attention(documents, None, EXACT_GPU)
    assert isinstance(plan, Pieces)
    assert plan.repeats_heads == (name != "repeated")
    found = attend(query, key, value, plan)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), (query, key, value)), theirs)


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("has_flag", [True, False])
def test_a_kernel_is_asked_once_and_only_without_the_flag(has_flag: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def share(shared: Tensor, times: int) -> Tensor:
        asked.append(times)
        return shared.repeat_interleave(times, 1)

    monkeypatch.setattr(attention, "_HAS_SHARING_FLAG", has_flag)
    monkeypatch.setattr(attention, "varlen_attn", varlen_of_2_11(share))
    for _ in range(2):
        with torch.inference_mode():
            plan_attention(document_numbers([[300, 212]]), None, EXACT_GPU)
    assert asked == ([] if has_flag else [3, 3])  # keys and values


@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("has_flag", [True, False])
def test_the_flag_is_passed_where_torch_has_it(has_flag: bool, kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[dict[str, Any]] = []

    def varlen_attn(query: Tensor, *_: Any, **options: Any) -> Tensor:
        passed.append(options)
        return query

    monkeypatch.setattr(attention, "_HAS_SHARING_FLAG", has_flag)
    monkeypatch.setattr(attention, "varlen_attn", varlen_attn)
    query, key = torch.randn(1, 8, 6, 16), torch.randn(1, 8, kv_heads, 16)
    attend(query, key, key, Pieces(ends=torch.tensor([0, 8], dtype=torch.int32), longest=8))
    assert [options.get("enable_gqa") for options in passed] == [kv_heads < 6 if has_flag else None]


@pytest.mark.parametrize(("width", "padded"), [(16, False), (12, True)])
def test_only_heads_of_a_width_that_no_kernel_has_are_copied(
    width: int, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[Tensor] = []

    def varlen_attn(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        passed.extend((query, key, value))
        return query

    monkeypatch.setattr(attention, "varlen_attn", varlen_attn)
    given = draw_heads(8, width, rows=1)
    attend(*given, Pieces(ends=torch.tensor([0, 8], dtype=torch.int32), longest=8))
    copied = [one.data_ptr() != other.data_ptr() for one, other in zip(passed, given, strict=True)]
    assert copied == [padded] * 3
    assert {one.shape[-1] for one in passed} == {16}


def test_attention_is_its_formula() -> None:
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(1, 4, 1, 8, generator=generator) for _ in range(3))
    scores = query[0, :, 0] @ key[0, :, 0].T / math.sqrt(8)  # (T, T)
    scores = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)
    torch.testing.assert_close(attend(query, key, value, None)[0, :, 0], scores.softmax(-1) @ value[0, :, 0])


def test_on_a_gpu_everything_is_in_the_type_of_the_values() -> None:
    plan, positions = plans_of_both_sizes()["ends"]
    query, key, value = draw_heads(positions, 16)
    found = attend(query, key, value.bfloat16(), plan)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), attend(query, key, value, plan), rtol=0, atol=0.03)


@HOW
@pytest.mark.parametrize("scale", [1, 10], ids=["short", "long"])
def test_a_rollout_attends_to_its_prompt_and_to_itself(scale: int, device: Device) -> None:
    runs = [[(0, 20), (1, 13), (2, 20), (3, 5), (-1, 6)], [(1, 60), (-1, 4)], [(0, 30), (1, 30), (2, 4)]]
    parts = torch.tensor([[part for part, length in row for _ in range(scale * length)] for row in runs])
    query, key, value = draw_heads(parts.shape[1], 16, rows=3)
    plan = plan_shared_prompts(parts, device)
    assert isinstance(plan, Tensor) == (scale == 1 and device is tiny.CPU)
    real = parts >= 0
    found = attend(query, key, value, plan)[real]
    mask = (parts.unsqueeze(2) == parts.unsqueeze(1)) | (parts == 0).unsqueeze(1)
    expected = attend(query, key, value, mask.tril().unsqueeze(1))[real]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    ours = torch.autograd.grad((found * weights).sum(), (query, key, value))
    theirs = torch.autograd.grad((expected * weights).sum(), (query, key, value))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_an_empty_micro_batch_of_rollouts_needs_no_plan() -> None:
    assert to_policy_batch([], version=1).parts is None


@pytest.mark.parametrize("repeats_heads", [False, True])
def test_a_compiled_block_is_compiled_once_for_all_micro_batches_on_a_gpu(repeats_heads: bool) -> None:
    """`fullgraph`: nothing of it falls back to Python."""
    block, counter = Block(tiny.CONFIG), CompileCounter()
    compiled = torch.compile(block, backend=counter, fullgraph=True, dynamic=False)
    cos, sin = rotations(torch.arange(512).expand(2, 512), tiny.CONFIG.head_dim, 1e4)
    x = torch.randn(2, 512, tiny.CONFIG.hidden_size)
    for rows in ([[300, 212], [512]], [[100, 412], [500, 12]], [[1, 1, 510], [512]]):
        plan = plan_attention(document_numbers(rows), None, EXACT_GPU)
        assert isinstance(plan, Pieces)
        plan = replace(plan, repeats_heads=repeats_heads)
        torch.testing.assert_close(compiled(x, cos, sin, plan), block(x, cos, sin, plan))
    assert counter.frame_count == 1


@pytest.mark.skipif(not attention._HAS_SHARING_FLAG, reason="torch 2.11 guards on each field of a frozen dataclass")
def test_a_compiled_block_is_not_compiled_again_for_each_micro_batch_on_a_cpu() -> None:
    block, counter = Block(tiny.CONFIG), CompileCounter()
    compiled = torch.compile(block, backend=counter, dynamic=False)
    cos, sin = rotations(torch.arange(512).expand(2, 512), tiny.CONFIG.head_dim, 1e4)
    x, frames = torch.randn(2, 512, tiny.CONFIG.hidden_size), []
    for rows in ([[300, 212], [512]], [[100, 50, 362], [500, 12]], [[1, 1, 510], [512]]):
        plan = plan_attention(document_numbers(rows), None, tiny.CPU)
        torch.testing.assert_close(compiled(x, cos, sin, plan), block(x, cos, sin, plan))
        frames.append(counter.frame_count)
    assert len(set(frames)) == 1
