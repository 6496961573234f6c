"""The limits that the documentation states are those that the benchmarks write beside their figures."""

from __future__ import annotations

from pathlib import Path

from tests.unit.bench.modules import imported

ROOT = Path(__file__).parents[3]


def test_the_packages_state_the_limits_of_the_benchmarks() -> None:
    lint, supervise = (
        " ".join((ROOT / "src/prime_train" / package / "__init__.py").read_text("utf-8").split())
        for package in ("cli/lint", "supervise")
    )
    with imported("record") as (record,):
        assert f"One file may take {record.LINT_RATIO} times as long as check-jsonschema" in lint
        assert f"`--help` may take {record.HELP_RATIO} times as long" in lint
        assert f"at most {record.SUPERVISOR_MIB} MiB" in supervise
