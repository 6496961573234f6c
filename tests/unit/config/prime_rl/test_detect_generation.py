"""Which generation a prime-rl file is judged by, and how that is known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli

from prime_train.config.detect import is_config
from prime_train.config.prime_rl.detect_generation import choose, installed_generation
from prime_train.config.prime_rl.schema import generations, load
from prime_train.rules.judge import lint
from tests.unit.config.prime_rl.files import FILES, RL_2026_01, RL_2026_08


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is looked into first, and the only one."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    installed_generation.cache_clear()
    yield tmp_path
    installed_generation.cache_clear()


@pytest.mark.usefixtures("three_generations")
@pytest.mark.parametrize(
    ("version", "generation"),
    [
        ("0.3.0", "2026-01"),
        ("0.4.9", "2026-01"),
        ("0.5.0", "2026-05"),
        ("0.5.1.dev261", "2026-05"),
        ("0.6.0", "2026-05"),
        ("0.7.0", "2026-08"),
        ("0.8.1.dev67", "2026-08"),
        ("1.0.0", "2026-08"),
    ],
)
def test_the_generation_of_what_is_installed(packages: Path, version: str, generation: str) -> None:
    (packages / f"prime_rl-{version}.dist-info").mkdir()
    assert installed_generation() == (generation, version)


@pytest.mark.parametrize("name", ["prime_rl_configs-0.4.0.dist-info", "prime_rl-0.7.0.egg-info", "prime_rl", "torch"])
def test_what_is_not_prime_rl_itself_reports_nothing(packages: Path, name: str) -> None:
    (packages / name).mkdir()
    assert installed_generation() is None


def test_folders_that_are_not_there_are_passed_over(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages / "prime_rl-0.5.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", ["/no/such/folder", __file__, str(packages)])
    assert installed_generation() == ("2026-05", "0.5.0")


def test_every_release_is_of_one_generation() -> None:
    """A table holds for every release up to the first one of the next generation."""
    first = [load(name).first_release for name in generations()]
    assert first[0] == ""
    assert first == sorted(first)


def test_the_generation_that_is_named_comes_first(packages: Path) -> None:
    values = tomli.loads(RL_2026_08)
    (packages / "prime_rl-0.5.0.dist-info").mkdir()
    said = choose(values, "rl.toml", "2026-08", "2026-01")
    assert (said.generation, said.because) == ("2026-08", "prime_train.prime_rl names it")
    asked = choose(values, "rl.toml", None, "2026-01")
    assert (asked.generation, asked.because) == ("2026-01", "--prime-rl names it")
    installed = choose(values, "rl.toml", None, None)
    assert (installed.generation, installed.because) == ("2026-05", "prime-rl 0.5.0 is installed")
    unknown = choose(values, "rl.toml", "2031-01", None)
    assert unknown.generation == "2026-05"


@pytest.mark.usefixtures("three_generations")
def test_the_keys_decide_it_where_it_is_not_named(packages: Path) -> None:
    assert list(packages.iterdir()) == []
    for text, generation in ((RL_2026_01, "2026-01"), (RL_2026_08, "2026-08")):
        choice = choose(tomli.loads(text), "rl.toml", None, None)
        assert (choice.generation, choice.because, choice.root) == (
            generation,
            "all of its keys are legal there",
            "rl",
        )


@pytest.mark.usefixtures("three_generations")
def test_a_generation_that_refuses_the_keys_together_is_not_chosen() -> None:
    text = 'max_steps = 20\nbatch_size = 64\nrollouts_per_example = 8\n[model]\nname = "a/b"\n[ckpt]\ninterval = 5\n'
    choice = choose(tomli.loads(text), "orch.toml", None, None)
    assert (choice.generation, choice.rivals) == ("2026-01", ("2026-05",))
    assert choice.because == "the newest without an error; 2026-05 has the keys too, and refuses the file"
    (note,) = lint(text, "orch.toml").findings
    assert (note.code, choice.because in note.what) == ("CFG011", True)


@pytest.mark.usefixtures("three_generations")
def test_what_the_newest_generation_refuses_together_is_reported() -> None:
    text = '[trainer.scheduler]\ntype = "cosine"\n[trainer]\n[orchestrator]\nbatch_size = 64\n'
    verdict = lint(text, "rl.toml")
    assert verdict.generation == "2026-08"
    assert "CFG012" in {finding.code for finding in verdict.findings}
    assert "CFG012" not in {finding.code for finding in lint(text, "rl.toml", "2026-05").findings}


@pytest.mark.usefixtures("three_generations")
def test_of_generations_with_errors_the_one_with_fewest_is_chosen(packages: Path) -> None:
    assert list(packages.iterdir()) == []
    choice = choose(tomli.loads(RL_2026_01.replace("[wandb]", "[wandbb]")), "rl.toml", None, None)
    assert (choice.generation, choice.because) == ("2026-01", "it has fewest errors there: 1")


def test_an_old_file_keeps_its_root_in_a_later_generation(packages: Path) -> None:
    assert list(packages.iterdir()) == []
    choice = choose(tomli.loads(RL_2026_01), "mine.toml", "2026-08", None)
    assert (choice.generation, choice.root) == ("2026-08", "rl")
    assert choice.unknown > 0


# --- the names of files --------------------------------------------------------------------------


@pytest.mark.parametrize("text", FILES.values(), ids=map(str, FILES))
def test_a_search_takes_files_of_prime_rl(text: str) -> None:
    assert is_config(text, "configs/words.toml")


@pytest.mark.parametrize(
    ("name", "generation", "text", "root"),
    [
        ("infer.toml", "2026-01", '[model]\nname = "a/b"\nmax_model_len = 4096\n[optim]\nlr = 1e-6\n', "inference"),
        ("orch.toml", "2026-05", 'max_steps = 5\n[model]\nname = "a/b"\n[data]\nname = "x"\n', "orchestrator"),
        ("eval.toml", "2026-08", 'output_dir = "out"\n[model]\nname = "a/b"\n[data]\nname = "x"\n', "evals"),
        ("eval.toml", "2026-08", "[orchestrator.eval]\ninterval = 5\n", "rl"),  # no key of the root in its name
        (
            "train.toml",
            "2026-08",
            '[model]\nname = "a/b"\n[data]\nname = "x"\n[deployment]\n',
            "sft",
        ),
    ],
)
def test_the_name_of_a_part_outweighs_its_keys(name: str, generation: str, text: str, root: str) -> None:
    assert lint(text, f"configs/{name}", generation).root == root
