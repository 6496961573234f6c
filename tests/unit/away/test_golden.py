"""Six job files as they are written, so that a change of the format is seen."""

from __future__ import annotations

import pytest

from prime_train import __version__
from tests.golden import same_text_as_golden
from tests.unit.away.plans import write_yaml

JOBS = (
    ("quickstart", "auto"),
    ("h100-80gb", "nebius"),
    ("sft-quickstart", "aws"),
    ("rl-vllm-4-plus-4", "azure"),
    ("rl-h100-80gb", "gcp"),
    ("l40s", "primeintellect"),
)


@pytest.mark.parametrize(("preset", "cloud"), JOBS)
def test_job_file(preset: str, cloud: str) -> None:
    written = write_yaml(preset, cloud).replace(f"=={__version__}", "==VERSION")
    same_text_as_golden(f"job_{preset}_{cloud}.yaml", written)
