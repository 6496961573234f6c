"""`prime-train trainers`: listed, shown, and a log that is checked."""

from __future__ import annotations

import json
from pathlib import Path

from prime_train.registry.trainers import trainer_profiles
from tests.golden import same_as_golden
from tests.unit.cli.commands import prime_train

LOG = "".join(f"iter {step}: loss {3 - step / 100:.4f}, time 135.20ms, mfu 41.20%\n" for step in range(0, 100, 10))


def test_every_trainer_is_listed_and_shown(tmp_path: Path) -> None:
    listed = json.loads(prime_train("trainers", "list", "--json", cwd=tmp_path).stdout)["trainers"]
    assert [one["name"] for one in listed] == list(trainer_profiles())
    assert "Hugging Face Trainer" in prime_train("trainers", "list", cwd=tmp_path).stdout
    shown = prime_train("trainers", "show", "megatron", cwd=tmp_path).stdout
    assert "iteration     1000/  500000" in shown
    assert "17: node" in shown
    (document,) = json.loads(prime_train("trainers", "show", "megatron", "--json", cwd=tmp_path).stdout)["trainers"]
    assert document["resume"]["template"] == "--load={dir}"


def test_a_log_is_checked(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    done = prime_train("trainers", "check", "train.log", cwd=tmp_path)
    assert done.returncode == 0
    assert "nanogpt" in done.stdout
    assert "1 to 91 (optimizer step), 10 seen, every 10" in done.stdout
    assert "the last step: no line known here has it" in done.stdout
    document = json.loads(prime_train("trainers", "check", "train.log", "--json", cwd=tmp_path).stdout)
    assert (document["trainer"], document["steps"]["last"], document["losses"]["count"]) == ("nanogpt", 91, 10)
    assert document["end"] is None


def test_the_document_of_a_checked_log_is_as_promised(tmp_path: Path) -> None:
    evaluation = "step 50: train loss 2.7000, val loss 2.8000\nsaving checkpoint to out\n"
    again = "Resuming training from out\niter 50: loss 2.5, time 135.20ms, mfu 41.20%\n"
    (tmp_path / "train.log").write_text(f"{LOG}{evaluation}{again}")
    document = json.loads(prime_train("trainers", "check", "train.log", "--json", cwd=tmp_path).stdout)
    same_as_golden("trainers_check.json", document)


def test_a_log_that_no_profile_takes_is_reported(tmp_path: Path) -> None:
    (tmp_path / "own.log").write_text("step 5 loss 2.5\nstep 6 loss 2.4\n")
    done = prime_train("trainers", "check", "own.log", cwd=tmp_path)
    assert done.returncode == 4
    assert "no profile takes a line of it (2 lines)" in done.stderr
    assert "command.progress.log" in done.stderr
    again = prime_train("trainers", "check", "own.log", "--json", cwd=tmp_path)
    assert (again.returncode, json.loads(again.stdout)["trainer"]) == (4, "")


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    missing = prime_train("trainers", "check", "none.log", cwd=tmp_path)
    assert (missing.returncode, "it cannot be read" in missing.stderr) == (2, True)
    folder = prime_train("trainers", "check", ".", cwd=tmp_path)
    assert folder.returncode == 2
    unknown = prime_train("trainers", "show", "megatrom", cwd=tmp_path)
    assert (unknown.returncode, "did you mean megatron?" in unknown.stderr) == (2, True)
