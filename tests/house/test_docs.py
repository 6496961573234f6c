from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.rules.judge import judge
from prime_train.spec.prime_rl_parts import Recipe

DOCS = Path(__file__).parents[2] / "docs"
GENERATE = DOCS / "generate.py"
SOURCE = DOCS.parent / "src" / "prime_train"
PAGES = (DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))


def test_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, GENERATE, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_about_recipes_names_every_key_and_its_example_is_clean() -> None:
    page = (DOCS / "recipe.md").read_text(encoding="utf-8")
    assert not [name for name in Recipe._fields if f"`{name}`" not in page]
    example = page.split("```toml\n")[1].split("```")[0]
    assert judge(detect.read(example, "recipe.toml")).findings == ()


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS.parent).as_posix())
def test_links_of_a_page_lead_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not re.match(r"\w+:", link) and (not target.exists() or (anchor and anchor not in anchors(target))):
            broken.append(link)
    assert broken == []


def arrows() -> Iterator[tuple[str, str, str]]:
    """(file above, arrow, file) of each line of the walks in docs/architecture.md; no file above the first one."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    for walk in re.findall(r"```\n(.*?)```", page, re.DOTALL):
        above: list[tuple[int, str]] = []
        for line in walk.splitlines():
            found = re.match(r"( *)(?:([-=]>) )?(\S+\.py)", line)
            assert found, line
            indent, arrow, file = len(found[1]), found[2] or "", found[3]
            above = [one for one in above if one[0] < indent]
            yield above[-1][1] if above else "", arrow, file
            above.append((indent, file))


def list_imports(file: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse((SOURCE / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


def test_the_walks_of_the_architecture_follow_the_code() -> None:
    found = list(arrows())
    assert len(found) > 40
    assert [file for _, _, file in found if not (SOURCE / file).is_file()] == []
    for above, arrow, file in found:
        assert bool(above) == bool(arrow), file
        if arrow == "->":
            module = "prime_train." + file.removesuffix(".py").replace("/", ".")
            package = module.rpartition(".")[0]
            is_exported = module in list_imports(f"{Path(file).parent}/__init__.py")
            imported = list_imports(above)
            assert module in imported or (is_exported and package in imported), f"{above} does not import {file}"


def test_the_tree_of_the_architecture_names_every_package() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert set(re.findall(r"^\| \[(\w+)\]\(internals/\1\.md\) \|", page, re.MULTILINE)) == packages


def test_the_files_that_docstrings_of_packages_name_are_there() -> None:
    root = DOCS.parent
    names = {path.name for path in (root / "tests").rglob("test_*.py")}
    for file in SOURCE.rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        named = re.findall(r"\b(?:docs|bench)/\w+\.\w+", text)
        assert [path for path in named if not (root / path).is_file()] == [], file
        assert set(re.findall(r"\btest_\w+\.py", text)) <= names, file


def test_the_files_that_the_page_of_places_names_are_there() -> None:
    lines = (DOCS / "where.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert [line for line in lines if "|" in line and re.fullmatch(r"\|[^|]+\|[^|]+\|", line) is None] == []
    named = [found for row in rows for found in re.findall(r"`([\w/]+\.(?:py|toml)|[\w/]+/)`", row)]
    assert len(named) > 30
    roots = (DOCS.parent, DOCS.parent / "src" / "prime_train")
    assert [one for one in named if not any((root / one).exists() for root in roots)] == []
