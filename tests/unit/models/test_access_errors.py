from __future__ import annotations

import pytest

from prime_train.core.errors import ExitCode
from prime_train.models.read.model_files import ReadFault, RefusedRead
from prime_train.models.read.read_files import access_error


@pytest.mark.parametrize("fault", ReadFault)
def test_every_fault_is_reported_in_four_parts(fault: ReadFault) -> None:
    error = access_error("lab/model", RefusedRead(fault, "HTTP 418"))
    assert error.exit_code in (ExitCode.FINDINGS, ExitCode.USAGE, ExitCode.OUT_OF_REACH)
    assert (error.where, error.what) == ("verify-model lab/model", "HTTP 418")
    assert error.why
    assert error.fix
    assert "{" not in error.fix


def test_a_misspelt_name_is_answered_with_the_right_one() -> None:
    assert access_error("Qwen/Qwen3-8b-", RefusedRead(ReadFault.MISSING, "")).fix == "did you mean Qwen/Qwen3-8B?"
