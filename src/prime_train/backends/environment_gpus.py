"""Says which GPUs a child may see where some are left out. Pure: it looks at no device."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prime_train.backends.launch import Variable

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible(gpus: Sequence[str], left_out: Collection[str], needed: int) -> Variable | None:
    """CUDA_VISIBLE_DEVICES without the GPUs that failed; None where all stay.

    `gpus`: UUIDs of those the run may see, in their order; `needed`: how many it cannot do without. Where fewer would
    remain, none is left out: an attempt that may fail is better than none. By UUID, because a lost GPU moves the
    numbers of those behind it.
    """
    kept = [gpu for gpu in gpus if gpu not in left_out]
    if len(kept) == len(gpus) or len(kept) < needed:
        return None
    gone = ", ".join(gpu for gpu in gpus if gpu in left_out)
    return Variable(VISIBLE, ",".join(kept), f"without {gone}, on which two attempts failed")
