"""Runs the tests of what was touched since a commit: `python tests/touched.py [COMMIT] [--list]`.

Those that start processes are left out: tests in FOLDERS run, `make test` runs the others too.

A test file belongs to a touched file where it mirrors its path, imports it, or names it. Those that mirror come first.
At most MOST_FILES run; `make test` runs the rest.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "prime_train"
FOLDERS = ("unit", "tables", "house")
MOST_FILES = 40  # about 40 s on two cores


def touched(commit: str) -> list[Path]:
    """Tracked files that differ from `commit`, and untracked ones that git does not ignore; relative to the root."""
    changed = _git("diff", "--name-only", commit, "--")
    return sorted({Path(name) for name in (*changed, *_git("ls-files", "--others", "--exclude-standard"))})


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def find_tests(files: Iterable[Path], tests: Iterable[Path]) -> list[Path]:
    """The test files that belong to `files`, those that mirror one first. Paths relative to the root."""
    imports = {test: _names(ROOT / test) for test in tests}
    nearest: dict[Path, None] = {}
    others: dict[Path, None] = {}
    for file in files:
        if file in imports:
            nearest[file] = None
        elif file.is_relative_to("src/prime_train") and file.suffix == ".py":
            inner = file.relative_to("src/prime_train").with_suffix("")
            module = ".".join(("prime_train", *inner.parts)).removesuffix(".__init__")
            mirrors = {Path("tests", folder, inner.parent, f"test_{inner.name}.py") for folder in FOLDERS}
            for test, names in imports.items():
                if test in mirrors:
                    nearest[test] = None
                elif module in names:
                    others[test] = None
        else:  # data, documentation, a stand-in: whichever test names it
            for test in imports:
                if file.name in (ROOT / test).read_text(encoding="utf-8"):
                    others[test] = None
    return [*nearest, *(test for test in others if test not in nearest)]


def _names(path: Path) -> set[str]:
    """The modules of the package that a test imports, at its top or inside."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def main(arguments: list[str]) -> int:
    named = [argument for argument in arguments if not argument.startswith("--")]
    files = [file for file in touched(named[0] if named else "HEAD") if (ROOT / file).is_file()]
    folders = [ROOT / "tests" / name for name in FOLDERS]
    every = [path.relative_to(ROOT) for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    found = find_tests(files, every)
    if not found:
        print(f"{len(files)} touched files, no test of them: make test runs every test")
        return 0
    chosen, left = found[:MOST_FILES], found[MOST_FILES:]
    print(
        f"{len(files)} touched files, {len(chosen)} test files" + (f"; {len(left)} more by make test" if left else "")
    )
    if "--list" in arguments:
        print(*chosen, sep="\n")
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-n", "logical", "--dist", "loadgroup", *map(str, chosen)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
