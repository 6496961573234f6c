from __future__ import annotations

from prime_train.rules.model.model_sizes import sizes_of


def test_a_model_is_found_by_its_whole_name() -> None:
    sizes = sizes_of("Qwen/Qwen3-1.7B")
    assert sizes is not None
    assert (sizes.heads, sizes.kv_heads, sizes.ctx_tokens) == (16, 8, 40960)
    assert sizes_of("Qwen3-1.7B") is None
    assert sizes_of(None) is None


def test_no_context_is_beyond_positions_that_are_not_known() -> None:
    unknown = sizes_of("01-ai/Yi-34B-Chat")
    assert unknown is not None
    assert unknown.ctx_tokens > 10_000_000
