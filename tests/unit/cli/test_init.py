"""`prime-train init --github-actions`: the workflow in a user's repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.commands import prime_train

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = (ROOT / ".github" / "workflows" / "training-monitor.yml").read_text(encoding="utf-8")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "configs").mkdir()
    return tmp_path


def workflow(repository: Path) -> Path:
    return repository / ".github" / "workflows" / "training-monitor.yml"


def test_the_workflow_is_written_at_the_top_of_the_repository(repository: Path) -> None:
    done = prime_train("init", "--github-actions", cwd=repository / "configs")
    assert done.returncode == 0, done.stderr
    assert workflow(repository).read_text(encoding="utf-8") == SHIPPED
    assert "gh variable set PRIME_TRAIN_WANDB" in done.stderr
    again = prime_train("init", "--github-actions", cwd=repository)
    assert (again.returncode, again.stdout.strip()) == (0, f"{workflow(repository)} is up to date")


def test_a_dry_run_shows_it_and_writes_nothing(repository: Path) -> None:
    done = prime_train("init", "--github-actions", "--dry-run", cwd=repository)
    assert done.returncode == 0
    assert "+name: training-monitor" in done.stdout
    assert not (repository / ".github").exists()


def test_a_changed_file_is_shown_and_kept(repository: Path) -> None:
    workflow(repository).parent.mkdir(parents=True)
    changed = SHIPPED.replace("7,22,37,52", "3,33")
    workflow(repository).write_text(changed, encoding="utf-8")
    done = prime_train("init", "--github-actions", cwd=repository)
    assert done.returncode == 1
    assert '-    - cron: "3,33' in done.stdout
    assert "--force" in done.stderr
    assert workflow(repository).read_text(encoding="utf-8") == changed
    assert prime_train("init", "--github-actions", "--force", cwd=repository).returncode == 0
    assert workflow(repository).read_text(encoding="utf-8") == SHIPPED


def test_a_link_is_not_followed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "file.yml"
    outside.write_text("mine", encoding="utf-8")
    workflow(repository).parent.mkdir(parents=True)
    workflow(repository).symlink_to(outside)
    assert prime_train("init", "--github-actions", "--force", cwd=repository).returncode == 2
    assert outside.read_text(encoding="utf-8") == "mine"


def test_outside_of_a_repository(tmp_path: Path) -> None:
    done = prime_train("init", "--github-actions", cwd=tmp_path)
    assert done.returncode == 2
    assert "git init" in done.stderr


def test_what_to_write_is_named(repository: Path) -> None:
    done = prime_train("init", cwd=repository)
    assert done.returncode == 2
    assert "prime-train init --github-actions" in done.stderr
