from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prime_train.facts.facts import Interpreter, ModuleFault, NotKnown
from prime_train.facts.interpreter import interpreter


def known(answer: Interpreter | NotKnown) -> Interpreter:
    assert isinstance(answer, Interpreter), answer
    return answer


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the interpreter has packages from."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def installed(folder: Path, name: str, version: str, *requirements: str) -> None:
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    needed = "".join(f"Requires-Dist: {text}\n" for text in requirements)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}")


def test_versions_and_what_they_require(packages: Path) -> None:
    installed(packages, "an-engine", "0.33.0", "a-tensor==2.13.0", "plain", "rare>=1; extra == 'all'")
    installed(packages, "a-tensor", "2.11.0")
    found = known(interpreter(sys.executable, ["an-engine", "not-there"], []))
    assert dict(found.versions) == {"an-engine": "0.33.0", "a-tensor": "2.11.0"}
    assert found.requirements == (("an-engine", "a-tensor==2.13.0"),)
    assert found.version == ".".join(str(part) for part in sys.version_info[:3])


@pytest.mark.parametrize(
    ("text", "cuda"), [("cuda: Optional[str] = '12.8'", "12.8"), ("cuda = None", "none"), ("cuda = '13.0'", "13.0")]
)
def test_the_cuda_of_torch_without_importing_it(packages: Path, text: str, cuda: str) -> None:
    (packages / "torch").mkdir()
    (packages / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (packages / "torch" / "version.py").write_text(f"__version__ = '2.13.0'\ndebug = False\n{text}\n")
    assert known(interpreter(sys.executable, [], ["torch"])).torch_cuda == cuda


def test_modules_are_looked_for_and_imported_only_where_asked(packages: Path) -> None:
    (packages / "my_env.py").write_text("print('noise')\nraise ValueError('no key')\n")
    found = known(interpreter(sys.executable, [], ["my_env", "gone_env"]))
    assert found.faults == (ModuleFault("gone_env", "it is not installed"),)
    found = known(interpreter(sys.executable, [], ["my_env", "gone_env"], ["my_env"]))
    assert found.faults == (
        ModuleFault("gone_env", "it is not installed"),
        ModuleFault("my_env", "ValueError: no key"),
    )


def test_a_module_of_a_package_is_looked_for_without_importing_the_package(packages: Path) -> None:
    (packages / "attention" / "cute").mkdir(parents=True)
    (packages / "attention" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (packages / "attention" / "plain.py").write_text("")
    found = known(interpreter(sys.executable, [], ["attention.cute", "attention.plain", "attention.gone", "no.such"]))
    assert [fault.module for fault in found.faults] == ["attention.gone", "no.such"]


def test_an_environment_within_verifiers_is_there(packages: Path) -> None:
    (packages / "verifiers" / "v1" / "tasksets").mkdir(parents=True)
    (packages / "verifiers" / "__init__.py").write_text("")
    (packages / "verifiers" / "v1" / "tasksets" / "math500.py").write_text("")
    assert known(interpreter(sys.executable, [], ["math500"], ["math500"])).faults == ()


@pytest.mark.parametrize("python", ["/bin/cat", "/bin/false", "/no/such/python"])
def test_what_is_no_interpreter_is_not_known(python: str) -> None:
    assert isinstance(interpreter(python, [], []), NotKnown)
