"""Chooses which GPUs each role may see: roles have GPUs of their own where there are enough.

Pure: it looks at no device. Without it all roles would take the machine's first GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prime_train.supervise.launch.launch import Variable
from prime_train.supervise.launch.program import Role

VISIBLE = "CUDA_VISIBLE_DEVICES"


def placed(role: str, roles: Sequence[Role], gpus: Sequence[str], left_out: Collection[str]) -> Variable | None:
    """CUDA_VISIBLE_DEVICES of one role; None where it sees all there are.

    `gpus`: those the run may see, in their order. Each role has as many as it needs, one role behind the other. Where
    there are fewer than all need together, each role sees all: a server takes its fraction of a GPU that a trainer is
    on too.
    """
    total = sum(one.gpus for one in roles)
    whole = visible(gpus, left_out, total) or visible(gpus, left_out, max((one.gpus for one in roles), default=0))
    kept = [gpu for gpu in gpus if gpu not in left_out] if whole is not None else list(gpus)
    if len(roles) < 2 or len(kept) < total:
        return whole
    place = next(number for number, one in enumerate(roles) if one.name == role)
    first = sum(one.gpus for one in roles[:place])
    others = ", ".join(one.name for one in roles if one.name != role)
    reason = f"{others} has GPUs of its own" + (f"; {whole.reason}" if whole is not None else "")
    return Variable(VISIBLE, ",".join(kept[first : first + roles[place].gpus]), reason)


def visible(gpus: Sequence[str], left_out: Collection[str], needed: int) -> Variable | None:
    """CUDA_VISIBLE_DEVICES without the GPUs that failed; None where all stay.

    `gpus`: those the run may see, in their order, by UUID where the program reads UUIDs, because a lost GPU moves the
    numbers of those behind it. `needed`: how many the run cannot do without. Where fewer would remain, none is left
    out: an attempt that may fail is better than none.
    """
    kept = [gpu for gpu in gpus if gpu not in left_out]
    if len(kept) == len(gpus) or len(kept) < needed:
        return None
    gone = ", ".join(gpu for gpu in gpus if gpu in left_out)
    return Variable(VISIBLE, ",".join(kept), f"without {gone}, on which two attempts failed")
