"""The bundled trainer, whose ranks sleep in each forward: the seconds of rank 0, of rank 1 and so on in FORWARD_S.

The ranks of all replicas are counted through.

A sleep is a device at work that takes no core, so a slow rank is slow on a machine with few cores, too.
python -m tests.drills.slow_rank RUN_DIR --attempt N --resume-step S
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from prime_train.trainer import __main__ as trainer
from prime_train.trainer.model.decoder import Block
from tests.unit.trainer import tiny

FORWARD_ENV = "FORWARD_S"


def slow_down() -> None:
    """Have this process sleep in each forward of a tiny model, in each block a part of it."""
    forward_s = float(os.environ[FORWARD_ENV].split(",")[int(os.environ["LOCAL_RANK"])])
    forward = Block.forward

    def slow(self: Block, *arguments: Any) -> Any:
        if self.training:
            time.sleep(forward_s / tiny.CONFIG.layers)
        return forward(self, *arguments)

    Block.forward = slow  # type: ignore[assignment, method-assign]


def main() -> None:
    slow_down()
    trainer._end(trainer.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
