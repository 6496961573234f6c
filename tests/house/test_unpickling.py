"""No code of the package unpickles a file with the power to run code, or runs the Python of a model repository."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "prime_train"
UNPICKLERS = {"pickle.load", "pickle.loads", "joblib.load", "dill.load", "dill.loads", "cloudpickle.load"}


def findings(text: str) -> Iterator[str]:
    """The calls in a module that may run the code of a file."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        runs_code = (
            name in UNPICKLERS,
            name.endswith(
                "FileSystemReader"
            ),  # its read_metadata unpickles; trainer/saves/dcp_reader.py has another one
            name == "torch.load" and given.get("weights_only") != "True",
            given.get("allow_pickle", "False") != "False",
            name.endswith("from_pretrained") and given.get("trust_remote_code", "False") != "False",
        )
        if any(runs_code):
            yield name


@pytest.mark.parametrize(
    "text",
    [
        "pickle.load(file)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file, allow_pickle=True)",
        "AutoTokenizer.from_pretrained(path, trust_remote_code=True)",
        "AutoConfig.from_pretrained(path, trust_remote_code=run.trust)",
        "FileSystemReader(folder)",
    ],
)
def test_what_runs_code_is_found(text: str) -> None:
    assert list(findings(text))


def test_no_module_runs_the_code_of_a_file() -> None:
    modules = list(SOURCE.rglob("*.py"))
    assert len(modules) > 400
    found = {str(path): list(findings(path.read_text(encoding="utf-8"))) for path in modules}
    assert {path: names for path, names in found.items() if names} == {}
