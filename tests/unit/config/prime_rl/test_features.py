"""What a table says of its generation beside the keys."""

from __future__ import annotations

import pytest

from prime_train.config.prime_rl.schema import Features, features_of, features_of_generation, generations, load, newest
from prime_train.spec import Data, Run, RunSpec, prime_rl_parts

VALUES = features_of_generation(None)._asdict()


@pytest.mark.parametrize("name", generations())
def test_each_table_has_its_features(name: str) -> None:
    assert features_of_generation(name) == load(name).features


@pytest.mark.parametrize(("name", "table"), [("2026-02", "2026-01"), ("2026-05-30", "2026-05"), ("2020-01", "2026-01")])
def test_a_generation_without_a_table_has_the_features_of_the_one_before(name: str, table: str) -> None:
    assert features_of_generation(name) == load(table).features


def test_a_run_without_a_generation_has_the_features_of_the_newest() -> None:
    run = RunSpec(
        run=Run(name="a", max_steps=1),
        data=Data(sources=()),
        format="prime-rl",
        prime_rl=prime_rl_parts.PrimeRl(launch=prime_rl_parts.LaunchPart()),
    )
    assert features_of(run) == load(newest()).features


@pytest.mark.parametrize(
    "changed",
    [
        {"names_runs": 1},
        {"vllm": 0.27},
        {"head_chunk_vocab": True},
        {"reserved_environment_names": "agg"},
        {"reserved_environment_names": [1]},
        {"unknown": True},
    ],
)
def test_what_is_no_feature_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="features"):
        Features.of(VALUES | changed)


def test_a_feature_must_not_be_missing() -> None:
    with pytest.raises(ValueError, match="expected vllm, names_runs"):
        Features.of({name: value for name, value in VALUES.items() if name != "vllm"})
