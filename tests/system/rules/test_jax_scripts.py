"""Rules on scripts, beyond their examples. JAX confirms them if PRIME_TRAIN_JAX_PYTHON names a Python that has it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.findings import Finding, Severity
from prime_train.rules.explain import SCRIPT, base_of, explain
from prime_train.rules.families import load_all
from prime_train.rules.judge import lint
from prime_train.rules.rule import Rule

ALL_WELL = (
    "import jax, os\n"
    "jax.config.update('jax_enable_preemption_service', False)\n"
    "{}\n"
    "jax.distributed.initialize({}heartbeat_timeout_seconds=600)\n"
)


def found(above: str, arguments: str = "") -> list[Finding]:
    return list(lint(ALL_WELL.format(above, arguments), "train.py").findings)


def codes(above: str, arguments: str = "") -> list[str]:
    return [finding.code for finding in found(above, arguments)]


@pytest.mark.parametrize(
    ("above", "arguments"),
    [
        ("os.environ['JAX_COORDINATOR_ADDRESS'] = address", "num_processes=4,"),
        ("os.environ.update(more)", "num_processes=4,"),
        ("", "num_processes=4, **more,"),
        ("", "num_processes=count,"),
        ("", "num_processes=1,"),
        ("", "num_processes=4, coordinator_address=address,"),
        ("", "num_processes=4, cluster_detection_method='mpi4py',"),
        ("", "num_processes=4, cluster_detection_method=method,"),
    ],
)
def test_a_coordinator_that_may_be_known_is_not_reported(above: str, arguments: str) -> None:
    assert codes(above, arguments) == []


@pytest.mark.parametrize(
    ("arguments", "column"),
    [("num_processes=4, coordinator_address=None,", 45), ("num_processes=4, process_id=rank,", 1)],
)
def test_a_missing_coordinator_is_reported_at_its_value_or_at_the_call(arguments: str, column: int) -> None:
    assert [(finding.code, finding.span[:2]) for finding in found("", arguments)] == [("JAX001", (4, column))]


def test_two_starts_with_numbers_of_their_own_are_two_processes() -> None:
    start = "jax.distributed.initialize('a:1', 2, {}, heartbeat_timeout_seconds=600)"
    branches = f"if first:\n    {start.format(0)}\nelse:\n    {start.format(1)}\n"
    assert "JAX004" not in codes(branches, "'a:1', 2, int(rank), ")
    assert codes(f"if first:\n    {start.format(0)}\nelse:\n    {start.format(0)}\n", "'a:1', 2, 0, ") == ["JAX004"] * 3


@pytest.mark.parametrize(
    ("variables", "passed"),
    [
        ("https_proxy='http://p', no_proxy='10.0.0.1'", True),
        ("https_proxy='http://p', no_proxy=' .internal , 10.0.0.0/8'", True),
        ("http_proxy='http://p', no_grpc_proxy='0.0.1'", True),
        ("https_proxy=proxy, no_proxy=hosts", True),
        ("grpc_proxy='', https_proxy='http://p'", True),
        ("HTTPS_PROXY='http://p'", True),
        ("https_proxy='http://p', NO_PROXY='10.0.0.1'", False),
        ("https_proxy='http://p', no_grpc_proxy='x', no_proxy='10.0.0.1'", False),
        ("https_proxy='http://p', no_proxy='*.0.0.1'", False),
        ("https_proxy='http://p', no_proxy='11.0.0.0/8'", False),
        ("https_proxy=proxy", False),
    ],
)
def test_a_proxy_is_bypassed_as_by_grpc(variables: str, passed: bool) -> None:
    reported = codes(f"os.environ.update({variables})", "'10.0.0.1:1', 2, int(rank), ")
    assert reported == ([] if passed else ["JAX008"])


def test_a_proxy_without_a_known_coordinator_is_reported_without_no_proxy() -> None:
    assert codes("os.environ['http_proxy'] = 'http://p'", "address, 2, int(rank), ") == ["JAX008"]
    assert codes("os.environ.update(http_proxy='http://p', no_proxy='x')", "address, 2, int(rank), ") == []


@pytest.mark.parametrize("value", ["0", "false", "Off", "NO"])
def test_a_variable_turns_the_service_off_as_jax_reads_it(value: str) -> None:
    script = "import os\nos.environ['JAX_ENABLE_PREEMPTION_SERVICE'] = '{}'\nimport jax\njax.distributed.initialize()\n"
    assert "JAX007" not in {finding.code for finding in lint(script.format(value), "train.py").findings}
    assert "JAX007" in {finding.code for finding in lint(script.format("1"), "train.py").findings}


def test_a_secret_in_a_script_is_reported_and_not_shown() -> None:
    key = "0123456789abcdef0123456789abcdef01234567"
    reported = found(f"os.environ['WANDB_API_KEY'] = '{key}'")
    assert [(finding.code, finding.span.line) for finding in reported] == [("SEC001", 3)]
    assert key not in repr(reported)


@pytest.mark.parametrize("comment", ["# prime-train: ignore[JAX006]", "#prime-train:ignore[jax006]"])
def test_a_comment_silences_on_its_line_or_from_above_all(comment: str) -> None:
    start = "jax.distributed.initialize(initialization_timeout=1, heartbeat_timeout_seconds=600)"
    rest = "import jax\njax.config.update('jax_enable_preemption_service', False)\n"
    for text in (f"{rest}{start}  {comment}\n", f"'''Trains.'''\n{comment}\n{rest}{start}\n"):
        assert lint(text, "train.py").findings == ()
    apart = lint(f"{rest}{comment}\n{start}\n", "train.py").findings
    assert [finding.code for finding in apart] == ["IGN001", "JAX006"]


def test_no_rule_of_a_config_passes_on_a_script() -> None:
    verdict = lint(ALL_WELL.format("", ""), "train.py")
    assert verdict.skipped == ()
    assert {code[:3] for code in verdict.passed} <= {"CFG", "JAX", "SEC"}


_VALUES = st.sampled_from(("'10.0.0.1:1'", "'h'", "None", "-1", "0", "2", "900", "x", "2.5", "[0]", "'deactivate'"))
_NAMES = st.sampled_from(
    ("coordinator_address", "num_processes", "process_id", "initialization_timeout", "cluster_detection_method", "nu")
)
_LINES = st.sampled_from(
    (
        "os.environ['https_proxy'] = 'http://p'",
        "os.environ['no_proxy'] = '/,::1/x, 10.0.0.0/99'",
        "os.environ['JAX_COORDINATOR_ADDRESS'] = '[::1]'",
        "os.environ['JAX_COORDINATOR_ADDRESS'] = 'h'",
        "os.environ[x] = '1'",
        "jax.config.update('jax_enable_preemption_service', True)",
    )
)


@given(st.dictionaries(_NAMES, _VALUES, max_size=5), st.lists(_LINES, max_size=5))
@settings(max_examples=200)
def test_a_finding_in_any_script_has_four_parts_and_a_place(named: dict[str, str], lines: list[str]) -> None:
    call = f"jax.distributed.initialize({', '.join(f'{name}={value}' for name, value in named.items())})"
    text = "\n".join(["import os, jax", *lines, call, ""])
    for finding in lint(text, "train.py").findings:
        assert finding.what
        assert finding.why
        assert finding.fix
        assert finding.key
        line = text.split("\n")[finding.span.line - 1]
        assert line[finding.span.column - 1 : finding.span.end_column - 1].strip()


# --- JAX itself -----------------------------------------------------------------------------------

_ERRORS = [
    (rule, example)
    for rule in load_all().values()
    if rule.code.startswith("JAX") and rule.severity is Severity.ERROR
    for example in explain(rule).bad
    if base_of(example) == SCRIPT
]


@pytest.mark.parametrize(("rule", "example"), _ERRORS, ids=[f"{rule.code}-{n}" for n, (rule, _) in enumerate(_ERRORS)])
def test_jax_refuses_each_script_with_an_error(rule: Rule, example: str, tmp_path: Path) -> None:
    python = os.environ.get("PRIME_TRAIN_JAX_PYTHON")
    if not python:
        pytest.skip("PRIME_TRAIN_JAX_PYTHON names no interpreter with JAX")
    script = tmp_path / "train.py"
    script.write_text(example.replace("10.0.0.1", "127.0.0.1"), encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "RANK": "0", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([python, script], capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert done.returncode == 1, rule.code
    assert done.stderr.rstrip().split("\n")[-1].startswith(("TypeError", "ValueError", "IndexError"))
