"""Says which GPUs each role of a run.toml may see: a trainer and a server each have their own where there are enough.

Pure: it looks at no device. Without it both would take the machine's first GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prime_train.backends import vllm
from prime_train.backends.environment_gpus import VISIBLE, visible
from prime_train.backends.launch import Variable
from prime_train.spec import RunSpec


def placed(role: str, run: RunSpec, gpus: Sequence[str], left_out: Collection[str]) -> Variable | None:
    """CUDA_VISIBLE_DEVICES of one role; None where it sees all there are.

    `gpus`: UUIDs of those the run may see, in their order. The trainer has the first, one for each process, and
    the server those behind them. Where there are fewer than both want, both see all: a server takes its fraction of a
    GPU that a trainer is on too.
    """
    train = 0 if run.serves_only else run.parallel.processes
    serve = vllm.gpus(run.server) if run.server is not None else 0
    whole = visible(gpus, left_out, train + serve) or visible(gpus, left_out, max(train, serve))
    kept = [gpu for gpu in gpus if gpu not in left_out] if whole is not None else list(gpus)
    if not train or not serve or len(kept) < train + serve:
        return whole
    own = kept[:train] if role != vllm.ROLE else kept[train : train + serve]
    others = "the server has those behind" if role != vllm.ROLE else "the trainer has those before"
    return Variable(VISIBLE, ",".join(own), f"{others}" + (f"; {whole.reason}" if whole is not None else ""))
