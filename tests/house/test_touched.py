"""The quick loop finds the tests of a touched file."""

from __future__ import annotations

from pathlib import Path

from tests.touched import ROOT, find_tests

EVERY = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*.py"))]


def test_a_touched_test_and_the_mirror_of_a_module_come_first() -> None:
    module, test = Path("src/prime_train/checkpoints/packing/planes.py"), Path("tests/house/test_touched.py")
    assert find_tests([module, test], EVERY)[:2] == [Path("tests/unit/checkpoints/packing/test_planes.py"), test]


def test_a_test_that_imports_a_module_belongs_to_it() -> None:
    assert Path("tests/system/checkpoints/test_archive.py") in find_tests(
        [Path("src/prime_train/checkpoints/layout.py")], EVERY
    )


def test_a_file_of_data_belongs_to_the_tests_that_name_it() -> None:
    assert Path("tests/house/test_prose.py") in find_tests([Path("CONTRIBUTING.md")], EVERY)


def test_a_file_that_no_test_knows_has_none() -> None:
    assert find_tests([Path("no-such-" + "file")], EVERY) == []
