"""The register of what a victim can do to itself, and what the harms share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.drills.marks import Marks
from tests.fakes.trainer import Fake

Harm = Callable[[Fake], None]
HARMS: dict[str, Harm] = {}


def harm(harm: Harm) -> Harm:
    HARMS[harm.__name__] = harm
    return harm


def marks_of(fake: Fake) -> Marks:
    return Marks(fake.run_dir.path.parents[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
