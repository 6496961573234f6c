"""The local engine: equal to the Decoder's own forward, whatever shares its batch."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.spans import Spans, read_spans
from prime_train.trainer.model.decoder import Decoder, build
from prime_train.trainer.rl.engines.cached_decoder import CachedDecoder
from prime_train.trainer.rl.engines.engine import EngineError, Generation, GenerationRequest, PromptTooLongError
from prime_train.trainer.rl.engines.local_engine import LocalEngine
from tests.unit.trainer import tiny
from tests.unit.trainer.families import ARCHITECTURES

CTX_TOKENS = 48
SHAPES = (
    tiny.CONFIG,  # grouped heads, tied
    replace(tiny.CONFIG, heads=4, kv_heads=4, head_dim=8, tie_embeddings=False),
    replace(tiny.CONFIG, qk_norm=True),
    *(ARCHITECTURES[name] for name in ("llama3", "qwen2", "gpt2", "qwen3_moe", "glm4_moe")),
)


LONG = (
    replace(tiny.CONFIG, heads=8, kv_heads=2, head_dim=16),
    replace(tiny.CONFIG, hidden_size=256, heads=8, kv_heads=2, head_dim=32, mlp_size=1408),  # oneDNN multiplies
)


@contextmanager
def engine(
    model: Decoder, slots: int = 8, spans: Spans | None = None, ctx_tokens: int = CTX_TOKENS
) -> Iterator[LocalEngine]:
    opened = LocalEngine(model.config, ctx_tokens=ctx_tokens, slots=slots, spans=spans)
    try:
        opened.update(model.state_dict(), 1)
        yield opened
    finally:
        opened.close()


def wide(seed: int, config: object = None) -> Decoder:
    """A decoder with weights far enough from 0 that its probabilities differ."""
    model = build(config if config is not None else tiny.CONFIG, seed)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3) if weight.ndim > 1 else weight.add_(torch.rand(weight.shape, generator=generator))
    return model


def request(seed: int, **changes: object) -> GenerationRequest:
    draw = random.Random(seed)
    prompt = tuple(draw.randrange(64) for _ in range(draw.randrange(1, 20)))
    plain = GenerationRequest(prompt, draw.randrange(1, 24), 1.0, frozenset({5}), seed)
    return replace(plain, **changes)  # type: ignore[arg-type]


def generate_together(opened: LocalEngine, requests: Sequence[GenerationRequest]) -> list[Generation]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(opened.generate, requests))


@torch.no_grad()
def full_logprobs(model: Decoder, tokens: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities (T, V) after each of T tokens, by the Decoder without a cache."""
    positions = torch.arange(len(tokens)).unsqueeze(0)
    logits = model(torch.tensor([tokens]), positions, None)[0]  # (T, V)
    scaled: torch.Tensor = (logits / temperature).log_softmax(-1)
    return scaled


def check_logprobs(model: Decoder, asked: GenerationRequest, answer: Generation) -> None:
    full = full_logprobs(model, asked.prompt + answer.tokens, asked.temperature or 1.0)
    expected = full[len(asked.prompt) - 1 : -1].gather(1, torch.tensor(answer.tokens).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("config", SHAPES)
def test_greedy_tokens_and_their_logprobs_are_the_decoders_own(config: object) -> None:
    model = wide(3, config)
    with engine(model) as opened:
        asked = [request(seed, temperature=0.0) for seed in range(20)]
        for each, answer in zip(asked, generate_together(opened, asked), strict=True):
            sequence = each.prompt + answer.tokens
            best = full_logprobs(model, sequence).argmax(-1)[len(each.prompt) - 1 : -1]
            assert tuple(best.tolist()) == answer.tokens
            check_logprobs(model, each, answer)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_are_those_of_the_sampled_distribution(temperature: float) -> None:
    model = wide(4)
    with engine(model) as opened:
        asked = [request(seed, temperature=temperature) for seed in range(20)]
        for each, answer in zip(asked, generate_together(opened, asked), strict=True):
            check_logprobs(model, each, answer)


@pytest.mark.parametrize("config", SHAPES)
def test_a_request_gives_the_same_answer_alone_and_in_any_company(config: object) -> None:
    asked = [request(seed, temperature=(0.0, 0.7, 1.0)[seed % 3]) for seed in range(30)]
    model = wide(5, config)
    with engine(model, slots=3) as opened:
        alone = [opened.generate(each) for each in asked]
    with engine(model, slots=30) as opened:
        together = generate_together(opened, asked)
        shuffled = generate_together(opened, asked[::-1])[::-1]
    assert alone == together == shuffled  # also the last bit of each log-probability


@pytest.mark.parametrize("config", LONG)
def test_a_long_request_gives_the_same_answer_alone_and_in_any_company(config: object) -> None:
    asked = [replace(request(seed, max_new_tokens=8), prompt=tuple(range(64)) * 6) for seed in range(9)]
    asked = [replace(each, prompt=each.prompt[: 3 + 45 * each.seed]) for each in asked]
    model = wide(19, config)
    with engine(model, slots=1, ctx_tokens=400) as opened:
        alone = [opened.generate(each) for each in asked]
    with engine(model, slots=9, ctx_tokens=400) as opened:
        together = generate_together(opened, asked)
        shuffled = generate_together(opened, asked[::-1])[::-1]
    assert alone == together == shuffled
    for each, answer in zip(asked, alone, strict=True):
        check_logprobs(model, each, answer)


def test_a_group_with_one_prompt_has_different_answers() -> None:
    model = wide(6)
    with engine(model) as opened:
        group = [replace(request(1, max_new_tokens=12), seed=seed) for seed in range(8)]
        answers = generate_together(opened, group)
    assert len({answer.tokens for answer in answers}) > 4
    for asked, answer in zip(group, answers, strict=True):
        check_logprobs(model, asked, answer)


def test_the_frequencies_of_tokens_are_their_probabilities() -> None:
    model = wide(7)
    prompt, draws = (1, 2, 3), 1500
    with engine(model, slots=64) as opened, ThreadPoolExecutor(64) as pool:
        asked = (GenerationRequest(prompt, 1, 1.0, frozenset(), seed) for seed in range(draws))
        drawn = [answer.tokens[0] for answer in pool.map(opened.generate, asked)]
    expected = full_logprobs(model, prompt)[-1].exp()  # (V,)
    found = torch.bincount(torch.tensor(drawn), minlength=64) / draws
    assert (found - expected).abs().max() < 5 * (0.25 / draws) ** 0.5


def test_an_answer_ends_at_a_stop_token_at_its_length_or_at_the_context() -> None:
    model = wide(8)
    with engine(model) as opened:
        long = opened.generate(GenerationRequest((1, 2), 100, 1.0, frozenset(), 1))
        assert (long.finish, len(long.tokens)) == ("context", CTX_TOKENS - 2)
        short = opened.generate(GenerationRequest((1, 2), 5, 1.0, frozenset(), 1))
        assert (short.finish, short.tokens) == ("length", long.tokens[:5])
        stop = long.tokens[3]
        stopped = opened.generate(GenerationRequest((1, 2), 100, 1.0, frozenset({stop}), 1))
        assert (stopped.finish, stopped.tokens[-1]) == ("stop", stop)
        full = opened.generate(GenerationRequest((1,) * (CTX_TOKENS - 1), 5, 1.0, frozenset(), 1))
        assert (full.finish, len(full.tokens)) == ("context", 1)


@pytest.mark.parametrize(
    ("prompt", "error"), [((1,) * CTX_TOKENS, PromptTooLongError), ((), ValueError), ((64,), ValueError)]
)
def test_a_prompt_that_cannot_be_continued_is_refused(prompt: tuple[int, ...], error: type[Exception]) -> None:
    with engine(tiny.decoder()) as opened:
        with pytest.raises(error):
            opened.generate(GenerationRequest(prompt, 4, 1.0, frozenset(), 1))
        assert opened.generate(request(1)).tokens


def test_answers_that_began_before_an_update_are_completed_with_the_former_weights() -> None:
    models = [wide(seed) for seed in (10, 11, 12)]
    asked = [request(seed, max_new_tokens=20, stop_tokens=frozenset()) for seed in range(60)]
    with engine(models[0], slots=6) as opened, ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(opened.generate, each) for each in asked]
        for version in (2, 3):
            futures[version * 15 - 20].result()
            opened.update(models[version - 1].state_dict(), version)
            assert opened.version == version
            after = opened.generate(request(99))
            assert after.version == version
            check_logprobs(models[version - 1], request(99), after)
        for each, future in zip(asked, futures, strict=True):
            answer = future.result()
            check_logprobs(models[answer.version - 1], each, answer)


def test_answers_stay_the_same_when_the_trainer_changes_its_weights() -> None:
    for config in (tiny.CONFIG, LONG[1]):
        model = wide(20, config)
        with engine(model) as opened:
            before = opened.generate(request(6))
            with torch.no_grad():
                for weight in model.parameters():
                    weight.zero_()
            assert opened.generate(request(6)) == before


def test_only_the_engine_of_a_small_model_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    prefill = CachedDecoder.prefill

    def noted(*args: Any) -> torch.Tensor:
        found.append(torch.get_num_threads())
        return prefill(*args)

    monkeypatch.setattr(CachedDecoder, "prefill", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for config in (tiny.CONFIG, LONG[1]):
            with engine(wide(21, config)) as opened:
                opened.generate(request(7))
                assert torch.get_num_threads() == 2
                with ThreadPoolExecutor(1) as later:
                    assert later.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)
    assert found == [1, 2]


def test_a_request_before_the_first_weights_is_refused() -> None:
    opened = LocalEngine(tiny.CONFIG, ctx_tokens=16, slots=1)
    try:
        with pytest.raises(EngineError, match="no weights"):
            opened.generate(request(1))
    finally:
        opened.close()


def test_weights_of_another_shape_are_refused_and_the_former_stay() -> None:
    model = wide(13)
    with engine(model) as opened:
        before = opened.generate(request(2))
        with pytest.raises(EngineError, match=r"embedding\.weight"):
            opened.update(build(replace(tiny.CONFIG, vocab_size=70), 1).state_dict(), 2)
        assert (opened.version, opened.generate(request(2))) == (1, before)


def test_weights_that_are_not_numbers_end_the_engine_with_their_version() -> None:
    model = wide(14)
    with torch.no_grad():
        model.norm.weight.fill_(torch.nan)
    with engine(model) as opened:
        for _ in range(2):
            with pytest.raises(EngineError, match="version 1"):
                opened.generate(request(3))


def test_a_close_ends_the_requests_in_progress() -> None:
    model = wide(15)
    opened = LocalEngine(model.config, ctx_tokens=20000, slots=2)
    opened.update(model.state_dict(), 1)
    endless = GenerationRequest((1,), 19999, 1.0, frozenset(), 1)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(opened.generate, endless) for _ in range(3)]
        tiny.until(lambda: bool(opened._waiting))
        opened.close()
        for future in futures:
            with pytest.raises(EngineError, match="closed"):
                future.result()
    assert not any(thread.name == "local-engine" for thread in threading.enumerate())


def test_spans_follow_a_request_through_queue_prefill_and_decode(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    with engine(wide(16), spans=Spans("engine", str(file))) as opened:
        opened.generate(request(4, lane="rollout-4", max_new_tokens=7, stop_tokens=frozenset()))
    spans = [span for span in read_spans(file) if span.lane == "rollout-4"]
    assert [(span.component, span.count) for span in spans][1:] == [("prefill", len(request(4).prompt)), ("decode", 7)]
    assert [span.start_s for span in spans] == sorted(span.start_s for span in spans)
    steps = [span for span in read_spans(file) if span.lane == "engine"]
    assert [span.component for span in steps] == ["prefill"] + ["decode"] * 6


def test_bf16_is_near_fp32() -> None:
    model = wide(17)
    opened = LocalEngine(model.config, ctx_tokens=CTX_TOKENS, slots=2, dtype=torch.bfloat16)
    try:
        opened.update(model.state_dict(), 1)
        asked = request(5, max_new_tokens=16, stop_tokens=frozenset())
        answer = opened.generate(asked)
    finally:
        opened.close()
    full = full_logprobs(model, asked.prompt + answer.tokens)[len(asked.prompt) - 1 : -1]
    expected = full.gather(1, torch.tensor(answer.tokens).unsqueeze(1)).squeeze(1)
    assert (torch.tensor(answer.logprobs) - expected).abs().max() < 0.1


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.integers(1, 5))
def test_any_requests_in_any_number_of_slots_are_answered(seeds: list[int], slots: int) -> None:
    model = wide(18)
    with engine(model, slots=slots) as opened:
        asked = [request(seed) for seed in seeds]
        for each, answer in zip(asked, generate_together(opened, asked), strict=True):
            assert 1 <= len(answer.tokens) == len(answer.logprobs) <= each.max_new_tokens
            assert not set(answer.tokens[:-1]) & each.stop_tokens
            check_logprobs(model, each, answer)
