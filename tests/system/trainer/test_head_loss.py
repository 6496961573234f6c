"""Losses and log-probabilities in chunks are those of all logits, in less memory; which one a device gets."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prime_train.spec.decoder_size import rows_of_chunk, rows_of_logprobs
from prime_train.trainer.batch import IGNORED
from prime_train.trainer.model import head_loss
from prime_train.trainer.model.decoder import Counted, HeadLogprobs, HeadLoss, whole_logprobs, whole_loss
from prime_train.trainer.model.head_loss import choose_logprobs, choose_loss, chunked_logprobs, chunked_loss
from tests.system.trainer.live_tensors import LiveTensors
from tests.unit.bench.modules import imported

with imported("activation_trace") as (trace,):
    LiveBytes = trace.LiveBytes


def inputs(rows: int, width: int, vocab_size: int, unlabelled: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(rows)
    hidden = torch.randn(1, rows, width, generator=draw, requires_grad=True)
    weight = (0.1 * torch.randn(vocab_size, width, generator=draw)).requires_grad_()
    labels = torch.randint(0, vocab_size, (1, rows), generator=draw)
    labels[:, :unlabelled] = IGNORED
    return hidden, weight, labels


def results(
    loss: HeadLoss, hidden: Tensor, weight: Tensor, labels: Tensor, vocab_size: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    total = loss(hidden, weight, labels, vocab_size or len(weight))
    of_hidden, of_weight = torch.autograd.grad(0.25 * total, (hidden, weight))
    return total, of_hidden, of_weight


@settings(deadline=None, max_examples=20)
@given(rows=st.sampled_from([1, 255, 256, 257, 600]), vocab_size=st.integers(1, 40), unlabelled=st.integers(0, 2))
def test_chunks_give_the_loss_and_the_gradients_of_all_logits(rows: int, vocab_size: int, unlabelled: int) -> None:
    made = inputs(rows, 8, vocab_size, min(rows, unlabelled))
    for ours, expected in zip(results(chunked_loss, *made), results(whole_loss, *made), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_weight_or_a_hidden_state_may_be_frozen() -> None:
    hidden, weight, labels = inputs(300, 8, 20)
    _, of_hidden, of_weight = results(whole_loss, hidden, weight, labels)
    (alone,) = torch.autograd.grad(0.25 * chunked_loss(hidden, weight.detach(), labels, 20), hidden)
    torch.testing.assert_close(alone, of_hidden, rtol=1e-5, atol=1e-5)
    (alone,) = torch.autograd.grad(0.25 * chunked_loss(hidden.detach(), weight, labels, 20), weight)
    torch.testing.assert_close(alone, of_weight, rtol=1e-5, atol=1e-5)


def test_an_evaluation_computes_no_gradient() -> None:
    hidden, weight, labels = inputs(300, 8, 2000)
    live = LiveTensors(iter((hidden, weight, labels)))
    with live, torch.no_grad():
        total = chunked_loss(hidden, weight, labels, 2000)
    assert not total.requires_grad
    assert live.peak - live.resident < 1.1 * 2 * 256 * 2000 * 4  # logits and log-probabilities of a chunk


def test_under_autocast_products_are_bf16_and_the_sum_is_not() -> None:
    hidden, weight, labels = inputs(300, 8, 20)
    with torch.autocast("cpu", torch.bfloat16):
        total, of_hidden, of_weight = results(chunked_loss, hidden, weight, labels)
    assert (total.dtype, of_hidden.dtype, of_weight.dtype) == (torch.float32,) * 3
    expected = results(whole_loss, hidden, weight, labels)
    torch.testing.assert_close(total, expected[0], rtol=1e-3, atol=0)
    torch.testing.assert_close(of_weight, expected[2], rtol=0.05, atol=0.05)


def test_a_second_backward_is_an_error() -> None:
    total = chunked_loss(*inputs(10, 8, 20), 20)
    total.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises((RuntimeError, TypeError)):
        total.backward()  # type: ignore[no-untyped-call]


def measure(loss: HeadLoss, made: tuple[Tensor, Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """The results, and the bytes that they needed at most."""
    live = LiveTensors(iter(made))
    with live:
        found = results(loss, *made)
    return found, live.peak - live.resident


def test_at_a_vocabulary_of_151936_the_peak_is_below_a_fifth() -> None:
    made = inputs(2048, 16, 151_936)
    assert rows_of_chunk(2048) == 256
    (found, peak), (whole, whole_peak) = measure(chunked_loss, made), measure(whole_loss, made)
    assert peak < whole_peak / 5
    for ours, expected in zip(found, whole, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


LOSSES: dict[str, HeadLoss] = {"whole": whole_loss, "chunked": chunked_loss}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_rows_of_no_token_change_nothing_and_learn_nothing(loss: HeadLoss) -> None:
    hidden, weight, labels = inputs(300, 8, 24)
    labels %= 20
    found = results(loss, hidden, weight, labels, vocab_size=20)
    expected = results(whole_loss, hidden, weight[:20].detach().requires_grad_(), labels)
    torch.testing.assert_close(found[:2], expected[:2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[2][:20], expected[2], rtol=1e-5, atol=1e-5)
    assert not found[2][20:].any()


class Products(TorchDispatchMode):
    """The shapes of the matrices that are multiplied."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "mm" in function.__name__:
            self.shapes += [tuple(leaf.shape) for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_padding_is_multiplied_and_not_cut_off(loss: HeadLoss) -> None:
    """A product of 50,257 columns is slower on a GPU than one of 50,304."""
    hidden, weight, labels = inputs(300, 8, 24)
    with Products() as products:
        results(loss, hidden, weight, labels % 20, vocab_size=20)
    widths = {width for shape in products.shapes for width in shape}
    assert 24 in widths
    assert 20 not in widths


def test_a_device_gets_its_loss() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert choose_loss(cpu, 151_936, compiled=True) is whole_loss
    assert choose_loss(gpu, 4096, compiled=False) is whole_loss
    assert choose_loss(gpu, 32_000, compiled=False) is chunked_loss


@pytest.mark.parametrize("vocab_size", [4096, 32_000], ids=["whole", "chunked"])
def test_the_loss_that_a_gpu_compiles_is_the_same(vocab_size: int) -> None:
    """It is compiled for the CPU here, and 20 of 24 rows are tokens."""
    compiled = choose_loss(torch.device("cuda"), vocab_size, compiled=True)
    hidden, weight, labels = inputs(300, 8, 24, unlabelled=3)
    labels = torch.where(labels == IGNORED, IGNORED, labels % 20)
    found = results(compiled, hidden, weight, labels, vocab_size=20)
    for ours, expected in zip(found, results(whole_loss, hidden, weight, labels, vocab_size=20), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def counted_of(rows: int, count: int, vocab_size: int, temperature: float = 0.7) -> Counted:
    """Every few of the rows."""
    places = torch.arange(count) * rows // max(1, count)
    return Counted(places, torch.arange(count) % vocab_size, temperature)


def results_of_logprobs(
    logprobs: HeadLogprobs, hidden: Tensor, weight: Tensor, counted: Counted, vocab_size: int | None = None
) -> tuple[Tensor, ...]:
    """Log-probabilities, entropies and the gradients of a sum in which each token has a weight of its own."""
    found, entropy = logprobs(hidden, weight, counted, vocab_size or len(weight))
    assert not entropy.requires_grad
    weights = torch.linspace(-1, 2, len(found))
    return found, entropy, *torch.autograd.grad((weights * found).sum(), (hidden, weight))


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(1, 30), share=st.floats(0, 1), padded=st.integers(0, 4), temperature=st.floats(0.3, 2))
def test_chunks_give_the_log_probabilities_and_the_gradients_of_all_logits(
    rows: int, share: float, padded: int, temperature: float
) -> None:
    hidden, weight, _ = inputs(rows, 8, 20 + padded)
    counted = counted_of(rows, round(share * rows), 20, temperature)
    with patch.object(head_loss, "rows_of_logprobs", lambda _: 4):
        found = results_of_logprobs(chunked_logprobs, hidden, weight, counted, 20)
    for ours, expected in zip(found, results_of_logprobs(whole_logprobs, hidden, weight, counted, 20), strict=True):
        assert ours.dtype == expected.dtype
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    assert not found[-1][20:].any()


def test_the_log_probabilities_of_a_frozen_head_have_the_gradient_of_hidden_states() -> None:
    hidden, weight, _ = inputs(30, 8, 20)
    counted = counted_of(30, 17, 20)
    found, _ = chunked_logprobs(hidden, weight.detach(), counted, 20)
    expected, _ = whole_logprobs(hidden, weight.detach(), counted, 20)
    ours, whole = (torch.autograd.grad(each.square().sum(), hidden)[0] for each in (found, expected))
    torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-5)


def test_a_reference_computes_no_gradient() -> None:
    with torch.no_grad():
        found, _ = chunked_logprobs(*inputs(30, 8, 20)[:2], counted_of(30, 17, 20), 20)
    assert not found.requires_grad


def test_under_autocast_log_probabilities_are_those_of_bf16_products_in_fp32() -> None:
    hidden, weight, _ = inputs(300, 8, 20)
    counted = counted_of(300, 170, 20)
    with torch.autocast("cpu", torch.bfloat16):
        found = results_of_logprobs(chunked_logprobs, hidden, weight, counted)
        expected = results_of_logprobs(whole_logprobs, hidden, weight, counted)
    assert [each.dtype for each in found] == [torch.float32] * 4
    for ours, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, whole, rtol=0.02, atol=0.02)


def peak_gib(logprobs: HeadLogprobs, tokens: int, width: int, vocab_size: int) -> float:
    """What forward and backward need under autocast beside the hidden states, by tensors without data."""
    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16), LiveBytes(frozenset()) as live:
        hidden = torch.empty(1, tokens, width, requires_grad=True)
        weight = torch.empty(vocab_size, width, requires_grad=True)
        made = live.live_bytes
        counted = Counted(torch.arange(tokens), torch.zeros(tokens, dtype=torch.int64), 0.9)
        found, _ = logprobs(hidden, weight, counted, vocab_size)
        found.sum().backward()  # type: ignore[no-untyped-call]
    needed: int = live.peak_bytes - made
    return needed / 2**30


def test_log_probabilities_of_16_thousand_tokens_of_a_large_vocabulary_need_two_gib() -> None:
    assert rows_of_logprobs(151_936) < 512
    assert peak_gib(whole_logprobs, 16_384, 896, 151_936) > 30
    assert peak_gib(chunked_logprobs, 16_384, 896, 151_936) < 2


def test_at_a_vocabulary_of_151936_the_gradients_of_log_probabilities_are_the_same() -> None:
    hidden, weight, _ = inputs(1000, 16, 151_936)
    counted = counted_of(1000, 900, 151_936)
    found = results_of_logprobs(chunked_logprobs, hidden, weight, counted)
    for ours, whole in zip(found, results_of_logprobs(whole_logprobs, hidden, weight, counted), strict=True):
        torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-5)


def test_a_gpu_reads_log_probabilities_in_chunks() -> None:
    assert choose_logprobs(torch.device("cpu"), compiled=True) is whole_logprobs
    assert choose_logprobs(torch.device("cuda"), compiled=False) is chunked_logprobs


def test_the_log_probabilities_that_a_gpu_compiles_are_the_same() -> None:
    """They are compiled for the CPU here; 20 of 24 rows are tokens, and the last chunk is shorter."""
    compiled = choose_logprobs(torch.device("cuda"), compiled=True)
    hidden, weight, _ = inputs(300, 8, 24)
    counted = counted_of(300, 170, 20)
    with patch.object(head_loss, "rows_of_logprobs", lambda _: 64):
        found = results_of_logprobs(compiled, hidden, weight, counted, 20)
    for ours, expected in zip(found, results_of_logprobs(whole_logprobs, hidden, weight, counted, 20), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
