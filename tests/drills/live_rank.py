"""The bundled trainer, which also writes down at which step each of its ranks puts a plan in force.

python -m tests.drills.live_rank RUN_DIR --attempt N --resume-step S
"""

from __future__ import annotations

import os
import sys

from prime_train.trainer import __main__ as trainer
from prime_train.trainer.live_settings import LiveSettings, PlannedStep

APPLIED_ENV = "APPLIED_FOLDER"


def main() -> None:
    put_in_force = LiveSettings._put_in_force

    def write_down(self: LiveSettings, plans: tuple[PlannedStep, ...]) -> None:
        path = os.path.join(os.environ[APPLIED_ENV], f"rank{self.attempt.rank}")  # noqa: PTH118 - a name, no more
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{self.attempt.number} {plans[-1].plan.version} {plans[-1].step}\n")
        put_in_force(self, plans)

    LiveSettings._put_in_force = write_down  # type: ignore[method-assign]
    trainer._end(trainer.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
