"""Each key of a run.toml either changes live, or has a reason why it does not."""

from __future__ import annotations

import pytest

from prime_train.config import run_toml
from prime_train.config.schema import Table, walk_fields
from prime_train.spec import Checkpoint, Data, Optim, Run, RunSpec, Source
from prime_train.spec.live_keys import FIXED_KEYS, LIVE_KEYS, find_fixed, find_live
from prime_train.spec.live_values import describe_values, read_value, with_values

KEYS = [
    ".".join(path) for path, _, item in walk_fields(run_toml.schema()) if not isinstance(item.shape, Table) and path[1:]
]
RUN = RunSpec(run=Run(name="a", max_steps=10), data=Data(sources=(Source(kind="python-stdlib"),)))


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_does_not_change_live_has_its_reason(key: str) -> None:
    live, fixed = find_live(key), find_fixed(key)
    assert live is not None or fixed is not None
    # A reason of the key itself would contradict the other table.
    assert live is None or fixed is None or fixed.name != key


def test_both_tables_name_keys_that_exist() -> None:
    tables = {key.partition(".")[0] for key in KEYS}
    assert {each.key for each in LIVE_KEYS} <= set(KEYS)
    assert {each.name for each in FIXED_KEYS} <= set(KEYS) | tables | {"tasks"}


def test_a_live_key_can_be_read_and_replaced() -> None:
    changed = with_values(RUN, {"optim.lr": 2e-4, "checkpoint.interval_steps": 7, "optim.muon_lr": None})
    assert (changed.optim, changed.checkpoint) == (Optim(lr=2e-4), Checkpoint(interval_steps=7))
    assert read_value(changed, "optim.lr") == 2e-4
    assert with_values(changed, {"optim.lr": 1}).optim.lr == 1.0


@pytest.mark.parametrize("values", [{"optim.lr": 0.0}, {"optim.lr": "fast"}, {"optim.nothing": 1}, {"none.lr": 1}])
def test_a_value_that_the_schema_does_not_allow_is_refused(values: dict[str, object]) -> None:
    with pytest.raises((ValueError, AttributeError)):
        with_values(RUN, values)


def test_values_are_written_as_toml_writes_them() -> None:
    values = {"optim.lr": 2e-4, "optim.muon_lr": None, "data.sampling_probs": [0.5, 0.5]}
    assert describe_values(values) == (
        "optim.lr = 0.0002",
        "optim.muon_lr = unset",
        "data.sampling_probs = [0.5, 0.5]",
    )
