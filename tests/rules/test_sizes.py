from __future__ import annotations

from prime_train.rules.sizes import _by_name, sizes_of


def test_a_model_is_found_by_its_whole_name() -> None:
    sizes = sizes_of("Qwen/Qwen3-1.7B")
    assert sizes is not None
    assert (sizes.heads, sizes.kv_heads, sizes.ctx_tokens) == (16, 8, 40960)
    assert sizes_of("Qwen3-1.7B") is None
    assert sizes_of(None) is None


def test_every_entry_is_possible_and_sourced() -> None:
    for name, sizes in _by_name().items():
        assert name == sizes.name
        assert sizes.heads % sizes.kv_heads == 0
        assert sizes.parameters > sizes.vocab_size > 0
        assert sizes.ctx_tokens >= 2048
        assert name in sizes.source
        assert sizes.as_of
