from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from prime_train.config import run_toml
from prime_train.facts import gather as gathering
from prime_train.facts.facts import NOT_GATHERED, Facts, NotKnown, OldPackage, Packages, to_json
from prime_train.facts.gather import PROBES, ProbeOptions, gather
from prime_train.facts.host import parse_gpus
from prime_train.facts.interpreter import TRAIN, find_packages
from prime_train.facts.machine import Cpu
from prime_train.registry import gpus
from prime_train.rules.judge import needs
from prime_train.spec import RunSpec
from prime_train.spec.answers import replace_parts
from prime_train.spec.prime_rl_parts import LaunchPart


def quickstart() -> RunSpec:
    run = run_toml.read(gpus.presets()["quickstart"].read_text(), "quickstart").run
    assert run is not None
    return run


def test_what_is_asked_for_is_gathered_and_nothing_else(tmp_path: Path) -> None:
    facts = gather(quickstart(), tmp_path / "run", ["cpu", "save_dir"])
    assert isinstance(facts.cpu, Cpu)
    assert facts.ram is NOT_GATHERED
    assert list(tmp_path.iterdir()) == []


def test_everything_that_rules_need_is_known_here_or_has_a_reason(tmp_path: Path) -> None:
    facts = gather(quickstart(), tmp_path / "run", needs())
    document = json.loads(json.dumps(to_json(facts)))
    assert set(document) == set(PROBES)
    assert document["model_folder"] is None
    assert document["save_dir"]["path"] == str(tmp_path / "run")


def test_a_probe_that_fails_leaves_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gathering.PROBES, "cpu", lambda _: (tmp_path / "gone").read_text())
    facts = gather(quickstart(), tmp_path, ["cpu"])
    assert facts.cpu == NotKnown("cpu could not be read: No such file or directory")
    assert to_json(facts)["cpu"] == {"not_known": "cpu could not be read: No such file or directory"}


def test_packages_names_those_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_packages() == Packages(tuple(name for name in TRAIN if name in find_packages().missing))
    monkeypatch.setattr("prime_train.facts.interpreter.TRAIN", ("json", "no_such_package_here"))
    assert find_packages().missing == ("no_such_package_here",)


@pytest.mark.parametrize(
    ("installed", "is_old"),
    [("2.10.0", True), ("2.11.0+cu130", False), ("2.11.0a0+git1", False), ("2.9.1", True), ("torch", False)],
)
def test_packages_names_what_is_too_old(installed: str, is_old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    required = ['torch>=2.11; extra == "train"', 'numpy>=9; extra == "other"', "msgspec>=99"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: required)
    monkeypatch.setattr("importlib.metadata.version", lambda _: installed)
    assert find_packages().old == ((OldPackage("torch", installed, ">=2.11"),) if is_old else ())


def test_a_source_tree_that_is_not_installed_states_no_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", fail_to_find)
    assert find_packages().old == ()


def fail_to_find(name: str) -> list[str]:
    raise PackageNotFoundError(name)


def test_gathering_imports_no_torch() -> None:
    program = (
        "import sys; from pathlib import Path; from tests.system.facts.test_gather import quickstart; "
        "from prime_train.facts.gather import PROBES, gather; gather(quickstart(), Path('/nowhere'), PROBES); "
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_facts_without_a_rule_are_not_gathered() -> None:
    assert all(value == {"not_known": "not gathered"} for value in to_json(Facts()).values())


def test_what_takes_long_is_left_to_deep(tmp_path: Path) -> None:
    facts = gather(quickstart(), tmp_path, ["disk_speed", "cuda_context", "engine"])
    assert facts.disk_speed == facts.cuda_context == NotKnown("only --deep probes it")
    assert facts.engine is None  # this run starts none


def test_of_another_machine_only_its_gpus_are_known(tmp_path: Path) -> None:
    manner = ProbeOptions(other_gpus=parse_gpus("8xh100-80gb"))
    facts = gather(quickstart(), tmp_path, PROBES, manner)
    assert facts.gpus == manner.other_gpus
    assert facts.ram == facts.save_dir == facts.interpreter == NotKnown("--gpus is for another machine")
    assert facts.source_files == ()


def test_a_run_on_slurm_is_not_judged_by_this_machine(tmp_path: Path) -> None:
    run = replace_parts(quickstart(), launch=LaunchPart(slurm=True), format="prime-rl")
    facts = gather(run, tmp_path, ["ram", "gpus", "source_files"])
    assert facts.ram == facts.gpus == NotKnown("the run starts on SLURM nodes, not on this machine")
    assert facts.source_files == ()
