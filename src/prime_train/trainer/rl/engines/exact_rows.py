"""Products, norms and attention that round a row the same, whatever is beside it: in fp32, on a CPU. Holds no state.

MKL rounds a row differently in a product of fewer than 4 rows, or in 2 threads of fewer than 8, so rows of zeros are
added. In large products that costs more than the product itself, so oneDNN computes them where it rounds a row the
same in any number of rows: from torch 2.13 on, with AVX2. Beyond about 200 positions MKL rounds a sum over them
depending on their number, so it is made of short sums. Measured with torch 2.13, MKL 2024.2 and AVX2, in 1 and 2
threads; not promised elsewhere.

Shapes: N sequences times heads of keys, T positions, D width of a head, G heads that share a key, C width of the
residual stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PADDED_PROMPT = 16  # the positions of prompts are rounded up to a multiple of it
PADDED = 64  # and those of a cache; fewer keys are not read, because torch computes a smaller product by other code
_SUMMED = 128  # positions that one product adds up at most
WIDE = 256  # width of a model from which oneDNN pays: it needs 25 us to begin a product
_CPU = torch.backends.cpu.get_cpu_capability()
# oneDNN 3.10 of torch 2.11 rounds a single row differently; 3.12 of torch 2.13 does not with AVX2, and does with AVX512
# where an inner width is large (1408, measured). TorchVersion compares numbers.
_HAS_EXACT = torch.__version__ >= "2.13" and _CPU == "AVX2"
HAS_ONEDNN = torch.backends.mkldnn.is_available() and _HAS_EXACT  # type: ignore[no-untyped-call]
_multiply_packed: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default


@dataclass(slots=True)
class Affine:
    """The gain of a norm, or a matrix, and a bias."""

    weight: Tensor  # a matrix that oneDNN multiplies is in its packed form
    bias: Tensor | None = None

    def load(self, weights: Mapping[str, Tensor], *names: str) -> None:
        """Join the layers of these names."""
        self.join([weights[f"{name}.weight"] for name in names])
        if self.bias is not None:
            torch.cat([weights[f"{name}.bias"] for name in names], out=self.bias)

    def join(self, weights: list[Tensor]) -> None:
        if self.weight.is_mkldnn:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights).float(), 16)
        else:
            torch.cat(weights, out=self.weight)

    def multiply(self, x: Tensor) -> Tensor:
        """(..., inner) to (..., outer)."""
        if self.weight.is_mkldnn:
            return _multiply_packed(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


def pad_rows(x: Tensor, multiple: int) -> Tensor:
    """(B, ...) with rows of zeros after it, up to a multiple."""
    missing = -len(x) % multiple
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)) if missing else x


def attend_exactly(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, out: Tensor) -> None:
    """Softmax attention of (N, G, D) over (N, T, D), written to `out` (N, G, D).

    The mask (N, 1, T) is added to the scores. Hidden positions at the end change no bit of the result where T is of
    `pad_positions`, because a product adds up _SUMMED positions at most.
    """
    scores = torch.baddbmm(mask, query, keys.transpose(1, 2), alpha=query.shape[-1] ** -0.5)  # (N, G, T)
    weights = scores.softmax(-1)
    torch.bmm(weights[..., :_SUMMED], values[:, :_SUMMED], out=out)
    for start in range(_SUMMED, scores.shape[-1], _SUMMED):
        out.baddbmm_(weights[..., start : start + _SUMMED], values[:, start : start + _SUMMED])


def scale_exactly(whole: Tensor, x: Tensor, gain: Tensor) -> Tensor:
    """The RMS norm of (..., C), with the gain times the root of C.

    `whole` (..., C + 1) is x and the root of C x eps, so its length is the root of C times that of the mean square
    plus eps. F.rms_norm is ten operations on a CPU: 17 us for 4 rows of 128, against 6 us (measured in one thread).
    """
    return (x * gain).div_(torch.linalg.vector_norm(whole, 2, -1, True))


def pad_positions(count: int, head_dim: int) -> int:
    """How many keys and values are read for `count` positions.

    A multiple of 32 reads least beyond the count. But torch computes a product of 32 positions and 8 numbers by other
    code, as all products of fewer than 400 multiplications.
    """
    return max(PADDED, round_up(count, 32 if head_dim >= 16 else PADDED))


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
