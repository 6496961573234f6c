"""The file with the oldest packages of the extras has the versions that pyproject.toml promises."""

from __future__ import annotations

from pathlib import Path

import tomli
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]


def test_the_oldest_versions_are_those_that_are_promised() -> None:
    extras = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    asked = (*extras["machines"], *extras["control"], *extras["audio"], *extras["replicas"])
    promised = {
        requirement.name: next(each.version for each in requirement.specifier if each.operator == ">=")
        for requirement in map(Requirement, asked)
        if requirement.name != "prime-train"
    }
    lines = (ROOT / "constraints-extras-oldest.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert tested.keys() == promised.keys()
    for name, version in tested.items():
        assert version == promised[name] or version.startswith(f"{promised[name]}."), name
