"""Products and attention round a row the same, whatever rows are beside it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from prime_train.trainer.rl.engines.exact_rows import HAS_ONEDNN, PADDED, Affine, attend_exactly, pad_rows, round_up

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
    matrix, x, least = Affine(draw(*shape)), draw(300, shape[1]), 4 * torch.get_num_threads()
    whole = matrix.multiply(pad_rows(x, least))
    for rows in (*range(1, 20), 64, 299):
        padded = pad_rows(x[:rows], least)
        assert len(padded) == round_up(rows, least)
        assert torch.equal(matrix.multiply(padded)[:rows], whole[:rows])


@pytest.mark.parametrize("heads", [(1, 1, 32), (2, 1, 8), (1, 4, 16), (2, 3, 20), (2, 8, 64), (4, 4, 128)])
def test_attention_rounds_a_row_the_same_beside_any_rows_and_before_any_hidden_positions(
    heads: tuple[int, int, int],
) -> None:
    (kv_heads, grouped, width), slots, most = heads, 7, 1024
    query, keys, values = draw(slots, kv_heads, grouped, width), *draw(2, slots, kv_heads, most, width)
    lengths = torch.tensor([1, 30, 64, 200, 257, 500, 900])

    def attend(first: int, last: int, longest: int) -> torch.Tensor:
        hidden = torch.arange(longest) >= lengths[first:last].unsqueeze(1)
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        read_keys, read_values = (part[first:last, :, :longest] for part in (keys, values))
        return attend_exactly(query[first:last], read_keys, read_values, mask)

    whole = attend(0, slots, most)
    for row, length in enumerate(lengths.tolist()):
        plain = F.scaled_dot_product_attention(query[row], keys[row, :, :length], values[row, :, :length])
        torch.testing.assert_close(whole[row], plain, atol=1e-5, rtol=1e-5)
        for longest in range(round_up(length, PADDED), most + 1, PADDED):
            assert torch.equal(attend(row, row + 1, longest)[0], whole[row])
    for count in range(1, slots):
        longest = round_up(int(lengths[:count].max()), PADDED)
        assert torch.equal(attend(0, count, longest), whole[:count])
