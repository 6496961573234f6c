"""`prime-train lint train.py`: a script is read where it is named, and never run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prime_train.cli.lint.files import check
from prime_train.cli.lint.fix import Repair
from prime_train.cli.lint.search import configs_among
from prime_train.core.errors import UserError

GOOD = (
    "import jax\n"
    'jax.config.update("jax_enable_preemption_service", False)\n'
    "jax.distributed.initialize(heartbeat_timeout_seconds=600)\n"
)
BAD = GOOD.replace("initialize(", 'initialize("10.0.0.1", 4, rank, ')
OTHER = 'print("jax.distributed.initialize()")\n'


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("good.py", GOOD), ("bad.py", BAD), ("other.py", OTHER), ("broken.py", "x = (\n" + GOOD)):
        Path(name).write_text(text, encoding="utf-8")


def test_a_good_script_is_clean_and_a_bad_one_is_reported_in_its_place() -> None:
    assert check(["good.py"]) == ("1 file is clean", True)
    output, ok = check(["bad.py"], output_format="json")
    document = json.loads(output)["files"][0]
    assert not ok
    assert (document["dialect"], document["root"], document["generation"]) == ("script", "jax", None)
    assert [
        (item["code"], item["line"], item["column"], item["end_column"], item["key"], item["fixable"])
        for item in document["findings"]
    ] == [("JAX002", 3, 28, 38, "jax.distributed.initialize.coordinator_address", False)]


def test_scripts_of_one_group_that_are_linted_together_have_numbers_of_their_own() -> None:
    for number, name in enumerate(("first.py", "second.py")):
        start = f'initialize("10.0.0.1:1234", 2, {number}, '
        Path(name).write_text(GOOD.replace("initialize(", start), encoding="utf-8")
    assert "JAX004" in check(["first.py"], output_format="concise")[0]
    assert check(["first.py", "second.py"])[0] == "2 files are clean"
    for other in ('"10.0.0.2:1234", 2, 1, ', '"10.0.0.1:1234", 2, 0, ', '"10.0.0.1:1234", 2, rank, '):
        Path("second.py").write_text(GOOD.replace("initialize(", f"initialize({other}"), encoding="utf-8")
        assert "first.py" in check(["first.py", "second.py"], output_format="concise")[0]


def test_what_is_no_python_is_a_finding() -> None:
    output, ok = check(["broken.py"], output_format="concise")
    assert not ok
    assert output.startswith("broken.py:1:5: error[CFG001] '(' was never closed")


def test_a_script_that_starts_nothing_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        check(["other.py"])
    assert refused.value.where == "other.py"


def test_a_hook_leaves_out_scripts_that_start_nothing() -> None:
    assert configs_among(["good.py", "bad.py", "other.py", "broken.py"]) == ["good.py", "bad.py", "broken.py"]


def test_a_folder_is_searched_for_no_script() -> None:
    with pytest.raises(UserError):
        check(["."])


def test_a_script_is_merged_with_nothing() -> None:
    with pytest.raises(UserError) as refused:
        check(["good.py", "+", "bad.py"])
    assert refused.value.where == "good.py"


def test_a_fix_leaves_a_script_as_it_is() -> None:
    output, ok = check(["bad.py"], repair=Repair(write=True, unsafe=True))
    assert not ok
    assert "JAX002" in output
    assert Path("bad.py").read_text(encoding="utf-8") == BAD
