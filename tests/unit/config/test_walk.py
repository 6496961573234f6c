"""The walk along a schema, which the formats share."""

from __future__ import annotations

import pytest

from prime_train.config.detect import read
from prime_train.config.parsed_config import UNKNOWN_KEY, WRONG_TYPE
from tests.unit.config.prime_rl.files import RL_2026_08

RUN = """
[run]
name = "a"
max_steps = 10
[data]
"""


def test_an_array_of_wrong_entries_has_twenty_faults() -> None:
    text = RUN + '[[data.sources]]\nkind = "files"\npath = 5\n' * 1000
    reading = read(text, "run.toml")
    assert [fault.code for fault in reading.faults] == [WRONG_TYPE] * 20
    assert [fault.shadows for fault in reading.faults[:2]] == ["data.sources.0.path", "data.sources.1.path"]
    assert reading.run is None  # it needs sources


def test_an_array_of_tables_in_a_prime_rl_file_has_twenty_faults() -> None:
    entry = '[[orchestrator.eval.source]]\nname = "a"\nnum_examples = 5\nno_such_key = 5\n'
    reading = read(RL_2026_08 + entry * 100, "rl.toml", "2026-08")
    assert len([fault for fault in reading.faults if fault.code == UNKNOWN_KEY]) == 20


@pytest.mark.parametrize(
    ("text", "path", "faults"),
    [
        (RUN + 'sources = [{kind = "python-stdlib"}]\nsampling_probs = ["a", "b"]\n', "run.toml", 2),
        (RL_2026_08 + '[trainer.log]\nranks_filter = ["a", "b"]\n', "rl.toml", 1),
    ],
)
def test_run_toml_reports_each_wrong_element_of_an_array_and_prime_rl_the_first(
    text: str, path: str, faults: int
) -> None:
    assert [fault.code for fault in read(text, path).faults] == [WRONG_TYPE] * faults
