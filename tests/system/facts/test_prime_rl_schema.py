"""The keys of an installed prime-rl, read from a stand-in that has the same pydantic shapes."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from prime_train.config.prime_rl.schema import SchemaGeneration, generations, load
from prime_train.config.prime_rl.table import to_json
from prime_train.config.prime_rl.validate import walk
from prime_train.core.errors import ExitCode, UserError
from prime_train.facts import installed_prime_rl

STANDIN = Path(__file__).parents[2] / "fakes" / "prime_rl_standin"
TODAY = date(2026, 11, 21)


def interpreter(folder: Path, packages: Path | None) -> str:
    """An interpreter that has what lies in `packages` installed."""
    path = folder / "python"
    named = "" if packages is None else f"PYTHONPATH={packages} "
    path.write_text(f'#!/bin/sh\n{named}exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return installed_prime_rl.table(interpreter(tmp_path_factory.mktemp("venv"), STANDIN), "2026-11", TODAY)


@pytest.fixture
def generation(table: dict[str, Any]) -> SchemaGeneration:
    return SchemaGeneration.of(table)


def test_where_it_comes_from(table: dict[str, Any], generation: SchemaGeneration) -> None:
    assert (generation.name, generation.source, generation.as_of) == ("2026-11", "prime-rl 0.9.0", "2026-11-21")
    assert set(generation.roots) == {"rl", "sft", "trainer", "orchestrator", "inference"}
    assert json.loads(to_json(table))["tables"] == table["tables"]


def test_what_its_classes_do_not_show_is_that_of_the_nearest_generation(
    table: dict[str, Any], generation: SchemaGeneration
) -> None:
    nearest = load(table["inherits"])
    assert generation.features == nearest.features
    assert generation.first_release == "0.9.0"
    assert f'"inherits": "{nearest.name}"' in to_json(table)


def test_only_keys_that_are_there_feed_the_run(generation: SchemaGeneration) -> None:
    newest = load(generations()[-1]).feeds
    assert generation.feeds["rl"]["rollout.batch_rollouts"] == ["orchestrator.batch_size"]
    assert "rollout.env_server_base_port" not in generation.feeds["rl"]
    assert all(set(fields) <= set(newest[root]) for root, fields in generation.feeds.items())


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in can be imported, and is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(STANDIN))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "prime_rl"]:
        del sys.modules[name]


# What each file is to pydantic, which reads it with the stand-in's own class.
FILES = [
    ("rl", "[trainer]\n[orchestrator]\n", True),
    ("rl", "[trainer]\n", False),
    ("rl", "[trainer]\n[orchestrator]\n[inference.vllm]\nblock_size = 32\n", True),
    ("rl", "[trainer]\n[orchestrator]\n[inference.server]\nport = 70000\n", False),
    ("sft", 'max_steps = 10\n[data]\nname = "a"\nseq_len = 1024\n', True),
    ("sft", "[data]\nseq_len = 0\n", False),
    ("trainer", 'max_steps = 10\n[model]\nattn = "sdpa"\n', True),
    ("trainer", '[model]\nattn = "flash_attention_9"\n', False),
    ("trainer", "[model]\natn = 'sdpa'\n", False),
    ("trainer", "[model.lora]\nrank = 0\n", False),
    ("trainer", "[model.lora]\nrank = 8\ntarget_modules = ['q_proj']\n", True),
    ("trainer", "[ckpt]\nkeep_last = 0\n", False),
    ("trainer", "[scheduler]\ntype = 'linear'\nmin_lr = 0.1\n", True),
    ("trainer", "[scheduler]\ntype = 'cosine'\nmin_lr = 0.1\n", False),
    ("trainer", "[scheduler]\ntype = 'square'\n", False),
    ("trainer", "[weight_broadcast]\ntype = 'nccl'\nport = 1\n", True),
    ("orchestrator", "[weight_broadcast]\ntype = 'nccl'\nport = 1\n", True),
    ("orchestrator", "[weight_broadcast]\ntype = 'filesystem'\nport = 1\n", False),
    ("orchestrator", "[train.sampling]\nmax_completion_tokens = 10\n", True),
    ("orchestrator", "[train.sampling]\nmax_tokens = 10\n", True),
    ("orchestrator", "[train.sampling]\nmax_tokens = 0\n", False),
    ("orchestrator", "[train.sampling.extra_body]\ntop_k = 5\n", True),
    ("orchestrator", "[[train.source]]\nid = 'a'\nratio = 0.5\ntags = ['x']\n", True),
    ("orchestrator", "[[train.source]]\nratio = 0.5\n", False),
    ("orchestrator", "[[train.source]]\nid = 'a'\ntags = 'x'\n", False),
    ("orchestrator", "[judges.strict]\nmodel = 'a'\n", True),
    ("orchestrator", "[judges.strict]\nmodell = 'a'\n", False),
    ("orchestrator", "[judges.strict]\nmodel = 'a'\n[judges.strict.next]\nmodel = 'b'\n", True),
    ("inference", "[server]\nport = 8000\n", True),
    ("inference", "[vllm]\ngpu_memory_utilization = 1.5\n", False),
]


@pytest.mark.usefixtures("standin")
@pytest.mark.parametrize(("root", "text", "legal"), FILES)
def test_files_are_judged_as_the_classes_judge_them(
    generation: SchemaGeneration, root: str, text: str, legal: bool
) -> None:
    values = tomllib.loads(text)
    faults = [fault for fault in walk(generation, root, values, whole=True).faults if fault.severity is None]
    assert (faults == []) is legal, faults
    module = importlib.import_module(f"prime_rl.configs.{root}")
    model = getattr(module, {"rl": "RLConfig", "sft": "SFTConfig"}.get(root, f"{root.capitalize()}Config"))
    try:
        model.model_validate(values)
    except ValueError:
        assert not legal
    else:
        assert legal


# --- what can go wrong ---------------------------------------------------------------------------


def refused(python: str) -> UserError:
    with pytest.raises(UserError) as error:
        installed_prime_rl.table(python, "2026-11", TODAY)
    assert error.value.where == f"--python {python}"
    return error.value


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    error = refused(str(tmp_path / "gone"))
    assert "No such file" in error.what
    assert error.exit_code is ExitCode.USAGE


def test_a_program_that_is_no_interpreter() -> None:
    error = refused(shutil.which("cat") or "/bin/cat")
    assert error.exit_code is ExitCode.USAGE


def test_an_interpreter_without_prime_rl(tmp_path: Path) -> None:
    error = refused(interpreter(tmp_path, None))
    assert error.what == "prime-rl is not installed"
    assert error.exit_code is ExitCode.OUT_OF_REACH


def test_a_prime_rl_without_the_classes(tmp_path: Path) -> None:
    (tmp_path / "prime_rl").mkdir()
    (tmp_path / "prime_rl" / "__init__.py").write_text("")
    error = refused(interpreter(tmp_path, tmp_path))
    assert "the root rl cannot be read: prime_rl.configs.rl: ModuleNotFoundError: No module named" in error.what
    assert error.exit_code is ExitCode.OUT_OF_REACH


def standin_copy(folder: Path) -> Path:
    """A copy of the stand-in's root modules, which a test may change."""
    shutil.copytree(STANDIN, folder, dirs_exist_ok=True)
    return folder / "prime_rl" / "configs"


@pytest.mark.parametrize("root", ["rl", "sft", "trainer", "orchestrator", "inference"])
def test_a_root_in_another_module_is_an_error(tmp_path: Path, root: str) -> None:
    configs = standin_copy(tmp_path)
    (configs / f"{root}.py").rename(configs / f"{root}_config.py")
    error = refused(interpreter(tmp_path, tmp_path))
    reason = f"prime_rl.configs.{root}: ModuleNotFoundError: No module named 'prime_rl.configs.{root}'"
    assert f"the root {root} cannot be read: {reason}" in error.what
    assert error.exit_code is ExitCode.OUT_OF_REACH


@pytest.mark.parametrize(
    ("root", "line", "reason"),
    [
        ("sft", "from .shared import RenamedConfig", "ImportError: cannot import name 'RenamedConfig'"),
        ("inference", "raise RuntimeError('no GPU')", "RuntimeError: no GPU"),
        ("trainer", "del TrainerConfig", "AttributeError: it has no TrainerConfig"),
    ],
)
def test_a_root_that_cannot_be_read_is_an_error(tmp_path: Path, root: str, line: str, reason: str) -> None:
    path = standin_copy(tmp_path) / f"{root}.py"
    path.write_text(path.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")
    error = refused(interpreter(tmp_path, tmp_path))
    assert f"the root {root} cannot be read: prime_rl.configs.{root}: {reason}" in error.what


def test_a_root_that_this_prime_rl_may_lack_is_an_error_only_if_it_is_there(tmp_path: Path) -> None:
    path = standin_copy(tmp_path) / "evals.py"
    path.write_text("class EvaluationsConfig: ...\n", encoding="utf-8")
    error = refused(interpreter(tmp_path, tmp_path))
    assert "the root evals cannot be read: prime_rl.configs.eval: ModuleNotFoundError: " in error.what
    assert "prime_rl.configs.evals: AttributeError: it has no EvalsConfig" in error.what
    assert "env-server" not in error.what


def test_a_prime_rl_that_does_not_import_has_the_reason(tmp_path: Path) -> None:
    configs = tmp_path / "prime_rl" / "configs"
    configs.mkdir(parents=True)
    (configs / "rl.py").write_text("print('noise')\nimport a_package_that_is_not_there\n")
    error = refused(interpreter(tmp_path, tmp_path))
    assert "No module named 'a_package_that_is_not_there'" in error.what
    assert error.exit_code is ExitCode.OUT_OF_REACH
