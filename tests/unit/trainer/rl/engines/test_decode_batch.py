"""Batches of the local engine: equal to the plain definition, whatever joins, leaves, or is read late."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from prime_train.trainer.model.decoder import Decoder
from prime_train.trainer.rl.engines.cached_decoder import CachedDecoder
from prime_train.trainer.rl.engines.decode_batch import DecodeBatch, DecodeRow
from prime_train.trainer.rl.engines.engine import Generation, GenerationRequest
from tests.unit.trainer import tiny
from tests.unit.trainer.families import ARCHITECTURES, loud

SLOTS = 6
SHAPES = (tiny.CONFIG, *(ARCHITECTURES[name] for name in ("gpt2", "qwen3_moe", "glm4_moe")))


def open_batch(model: Decoder, read_steps: int, ctx_tokens: int = 40) -> DecodeBatch:
    decoder = CachedDecoder(model.config, SLOTS, ctx_tokens + read_steps - 1)
    decoder.load(model.state_dict())
    return DecodeBatch(decoder, read_steps, version=1)


def request(seed: int, **changes: Any) -> GenerationRequest:
    draw = random.Random(seed)
    prompt = tuple(draw.randrange(64) for _ in range(draw.randrange(1, 30)))
    temperature = (0.0, 0.7, 1.0)[seed % 3]
    return replace(GenerationRequest(prompt, draw.randrange(1, 20), temperature, frozenset({5, 6}), seed), **changes)


def open_row(asked: GenerationRequest, ctx_tokens: int = 40) -> DecodeRow:
    return DecodeRow(asked, 0.0, min(asked.max_new_tokens, ctx_tokens - len(asked.prompt)), version=1)


def answer_plainly(model: Decoder, asked: GenerationRequest) -> Generation:
    """The answer to one request alone, with one step and one look at its token at a time."""
    decoder, row, draw = open_batch(model, 1).decoder, open_row(asked), random.Random(asked.seed)
    logits = decoder.prefill([asked.prompt], [[0]])[0]  # (V,)
    while True:
        logprobs = (logits / asked.temperature if asked.temperature else logits).log_softmax(-1)  # (V,)
        if asked.temperature:
            cumulated = list(accumulate(logprobs.exp().tolist()))
            token = min(bisect_right(cumulated, draw.random() * cumulated[-1]), len(cumulated) - 1)
        else:
            token = int(logprobs.argmax())
        row.add([token], [float(logprobs[token])])
        if row.finish is not None:
            return row.generation
        place = len(asked.prompt) + len(row.tokens) - 1
        logits = decoder.decode(torch.tensor([token]), torch.tensor([place]), place + 1)[0]


def answer_together(batch: DecodeBatch, asked: Sequence[GenerationRequest], seed: int) -> list[Generation]:
    """The answers by one batch, which the requests join at different steps."""
    rows, draw = [open_row(each) for each in asked], random.Random(seed)
    waiting = list(rows)
    while waiting or batch.rows:
        while waiting and len(batch.rows) < SLOTS and draw.random() < 0.5:
            batch.add(waiting.pop(0))
        if batch.rows:
            batch.step()
    return [row.generation for row in rows]


@pytest.mark.parametrize("config", SHAPES)
@pytest.mark.parametrize("read_steps", [1, 3, 8])
@torch.inference_mode()
def test_answers_are_those_of_the_plain_definition_to_the_last_bit(config: Any, read_steps: int) -> None:
    model, asked = loud(config), [request(seed) for seed in range(24)]
    expected = [answer_plainly(model, each) for each in asked]
    assert {answer.finish for answer in expected} == {"stop", "length", "context"}
    assert answer_together(open_batch(model, read_steps), asked, seed=1) == expected


class _Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations for whose result the host waits on a GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        waits = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"}
        masks = func.name() == "aten::index" and any(part.dtype == torch.bool for part in args[1] if part is not None)
        self.count += func.name().split("::")[1].split(".")[0] in waits or masks
        return func(*args, **(kwargs or {}))


def count_waits(monkeypatch: pytest.MonkeyPatch, config: Any, read_steps: int, steps: int) -> int:
    """Waits of the host for a GPU in some steps of three rows: a read of a result, or a copy from ordinary memory."""
    batch = open_batch(loud(config), read_steps, ctx_tokens=100)
    for seed in range(3):
        asked = request(seed, prompt=(seed, 1, 2), max_new_tokens=steps + 1, stop_tokens=frozenset())
        batch.add(open_row(asked, 100))
    prefill = batch.step()
    assert (prefill.kind, prefill.finished) == ("prefill", [])
    waits = _Waits()

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            waits.count += 1
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patched, waits:
        patched.setattr(torch, "tensor", counted(torch.tensor))
        for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__"):
            patched.setattr(torch.Tensor, name, counted(getattr(torch.Tensor, name)))
        while batch.rows:
            batch.step()
    return waits.count


@pytest.mark.parametrize("config", SHAPES)
@torch.inference_mode()
def test_the_host_waits_once_for_a_number_of_tokens(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    of_one_read = count_waits(monkeypatch, config, read_steps=8, steps=8)
    assert 0 < of_one_read < 8
    assert count_waits(monkeypatch, config, read_steps=64, steps=64) == of_one_read
    assert count_waits(monkeypatch, config, read_steps=8, steps=64) == 8 * of_one_read
    assert count_waits(monkeypatch, config, read_steps=1, steps=8) == 8 * of_one_read


@torch.inference_mode()
def test_prompts_of_one_padded_length_are_prefilled_together() -> None:
    batch = open_batch(loud(tiny.CONFIG), 1)
    rows = [open_row(GenerationRequest((1,) * length, 4, 0.0, frozenset(), 0)) for length in (3, 20, 16, 17)]
    for row in rows:
        batch.add(row)
    assert [batch.step().tokens for _ in range(2)] == [3 + 16, 20 + 17]
    assert [len(row.tokens) for row in rows] == [1, 1, 1, 1]
    assert batch.step().kind == "decode"
