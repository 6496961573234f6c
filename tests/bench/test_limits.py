"""The limits that the documentation states are those that the benchmarks write beside their figures."""

from __future__ import annotations

from pathlib import Path

from tests.bench.modules import imported

ROOT = Path(__file__).parents[2]


def test_the_architecture_states_the_limits_of_the_benchmarks() -> None:
    text = " ".join((ROOT / "docs/architecture.md").read_text("utf-8").split())
    with imported("record") as (record,):
        assert f"A `lint` of one file may take {record.LINT_RATIO} times as long as check-jsonschema" in text
        assert f"`--help` {record.HELP_RATIO} times as long" in text
        assert f"children of its watches take at most {record.SUPERVISOR_MIB} MiB" in text
