"""Products, norms and attention round a row the same, whatever rows are beside it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from prime_train.trainer.rl.engines.exact_rows import (
    HAS_ONEDNN,
    Affine,
    attend_exactly,
    pad_positions,
    pad_rows,
    round_up,
    scale_exactly,
)

SHAPES = ((64, 1408), (1408, 256), (1024, 512), (97, 300))


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.skipif(not HAS_ONEDNN, reason="oneDNN does not round a row the same here")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_packed_product_rounds_a_row_the_same_in_any_number_of_rows(shape: tuple[int, int]) -> None:
    matrix, bias, x = Affine(torch.empty(shape).to_mkldnn(), torch.zeros(shape[0])), draw(shape[0]), draw(300, shape[1])
    weight = draw(*shape)
    matrix.load({"a.weight": weight[:40], "a.bias": bias[:40], "b.weight": weight[40:], "b.bias": bias[40:]}, "a", "b")
    whole = matrix.multiply(x)
    torch.testing.assert_close(whole, F.linear(x, weight, bias), atol=1e-3, rtol=1e-4)
    for rows in (*range(1, 20), 64, 299):
        assert torch.equal(matrix.multiply(x[:rows]), whole[:rows])
        assert torch.equal(matrix.multiply(x[-rows:]), whole[-rows:])
    kept = whole.clone()
    weight.zero_()  # the packed weights are a copy
    assert torch.equal(matrix.multiply(x), kept)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_of_padded_rows_rounds_a_row_the_same(shape: tuple[int, int]) -> None:
    matrix, x, least = Affine(draw(*shape).t().contiguous().t()), draw(300, shape[1]), 4 * torch.get_num_threads()
    whole = matrix.multiply(pad_rows(x, least))
    for rows in (*range(1, 20), 64, 299):
        padded = pad_rows(x[:rows], least)
        assert len(padded) == round_up(rows, least)
        assert torch.equal(matrix.multiply(padded)[:rows], whole[:rows])


@pytest.mark.parametrize("heads", [(1, 1, 32), (2, 1, 8), (1, 1, 16), (1, 4, 16), (2, 3, 20), (2, 8, 64), (4, 4, 128)])
def test_attention_rounds_a_row_the_same_beside_any_rows_and_before_any_hidden_positions(
    heads: tuple[int, int, int],
) -> None:
    (kv_heads, grouped, width), slots, most = heads, 8, 1024
    query, keys, values = draw(slots, kv_heads, grouped, width), *draw(2, slots, kv_heads, most, width)
    lengths = torch.tensor([1, 30, 64, 130, 200, 257, 500, 900])

    def attend(first: int, last: int, longest: int) -> torch.Tensor:
        hidden = torch.arange(longest) >= lengths[first:last].repeat_interleave(kv_heads).view(-1, 1, 1)
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        read_keys, read_values = (part[first:last, :, :longest].flatten(0, 1) for part in (keys, values))
        mixed = torch.empty(query[first:last].shape)
        attend_exactly(query[first:last].flatten(0, 1), read_keys, read_values, mask, mixed.flatten(0, 1))
        return mixed

    whole = attend(0, slots, most)
    for row, length in enumerate(lengths.tolist()):
        plain = F.scaled_dot_product_attention(query[row], keys[row, :, :length], values[row, :, :length])
        torch.testing.assert_close(whole[row], plain, atol=1e-5, rtol=1e-5)
        for longest in sorted({pad_positions(count, width) for count in range(length, most + 1)}):
            assert torch.equal(attend(row, row + 1, longest)[0], whole[row])
    for count in range(1, slots):
        longest = pad_positions(int(lengths[:count].max()), width)
        assert torch.equal(attend(0, count, longest), whole[:count])


@pytest.mark.parametrize("size", [16, 97, 128, 300, 1024])
def test_a_norm_is_torchs_and_rounds_a_row_the_same_in_any_number_of_rows(size: int) -> None:
    eps = 1e-5
    whole, gain = draw(300, size + 1) * torch.logspace(-4, 3, 300).unsqueeze(1), draw(size)
    whole[:, -1] = (size * eps) ** 0.5
    scaled = scale_exactly(whole, whole[:, :-1], gain * size**0.5)
    torch.testing.assert_close(scaled, F.rms_norm(whole[:, :-1], (size,), gain, eps), atol=1e-6, rtol=1e-5)
    for rows in (*range(1, 20), 64, 299):
        assert torch.equal(scale_exactly(whole[:rows], whole[:rows, :-1], gain * size**0.5), scaled[:rows])
