"""`prime-train presets`: listed, shown and copied."""

from __future__ import annotations

import json
from pathlib import Path

from prime_train.registry.gpus import presets
from tests.unit.cli.commands import prime_train


def test_every_preset_is_listed_with_its_gpus(tmp_path: Path) -> None:
    listed = json.loads(prime_train("presets", "list", "--json", cwd=tmp_path).stdout)["presets"]
    assert [one["name"] for one in listed] == list(presets())
    assert {one["name"]: one["gpus"] for one in listed}["h200"] == "8xh200"
    assert all(one["summary"] and "#" not in one["summary"] for one in listed)


def test_a_copy_is_a_new_file_with_the_same_text(tmp_path: Path) -> None:
    assert prime_train("presets", "copy", "quickstart", cwd=tmp_path).returncode == 0
    text = presets()["quickstart"].read_text()
    assert (tmp_path / "run.toml").read_text() == text
    assert prime_train("presets", "show", "quickstart", cwd=tmp_path).stdout == text
    shown = json.loads(prime_train("presets", "show", "quickstart", "--json", cwd=tmp_path).stdout)["preset"]
    assert (shown["name"], shown["text"]) == ("quickstart", text)
    (tmp_path / "run.toml").write_text("mine")
    again = prime_train("presets", "copy", "quickstart", cwd=tmp_path)
    assert (again.returncode, (tmp_path / "run.toml").read_text()) == (2, "mine")
    assert "the file exists" in again.stderr


def test_a_name_that_is_nearly_one(tmp_path: Path) -> None:
    done = prime_train("presets", "copy", "quickstat", cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "did you mean quickstart?" in done.stderr


def test_run_takes_the_run_toml_of_its_folder(tmp_path: Path) -> None:
    quickstart = presets()["quickstart"].read_text()
    (tmp_path / "run.toml").write_text(quickstart.replace('"quickstart"', '"mine"'))
    done = prime_train("run", "--dry-run", "--no-validate", cwd=tmp_path)
    assert done.stdout.startswith("mine: the plan")
    assert "config: run.toml" in done.stderr


def test_the_users_presets_are_marked_and_a_bad_one_is_a_row(tmp_path: Path) -> None:
    folder = tmp_path / "xdg" / "prime-train" / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('# GPUs: rtx-4090\n# Mine \x9b2J. It is small.\n\n[run]\nname = "mine"\n')
    (folder / "broken.toml").write_text("[run\n")
    (folder / "quickstart.toml").symlink_to("/dev/zero")
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    done = prime_train("presets", "list", "--json", cwd=tmp_path, **environment)
    listed = {one["name"]: one for one in json.loads(done.stdout)["presets"]}
    assert [name for name, one in listed.items() if one["origin"] == "user"] == ["broken", "mine", "quickstart"]
    assert (listed["mine"]["gpus"], listed["mine"]["fault"], listed["mine"]["shadows"]) == ("rtx-4090", None, False)
    assert "\x9b" not in listed["mine"]["summary"]
    assert listed["broken"]["fault"].startswith("cannot be used: it is no TOML")
    assert (listed["quickstart"]["fault"], listed["quickstart"]["shadows"]) == (
        "cannot be used: it is a symbolic link",
        True,
    )
    assert listed["shipped:quickstart"]["origin"] == "shipped"
    shown = prime_train("presets", "show", "shipped:quickstart", cwd=tmp_path, **environment)
    assert shown.stdout == presets()["quickstart"].read_text()
    refused = prime_train("presets", "copy", "quickstart", cwd=tmp_path, **environment)
    assert (refused.returncode, (tmp_path / "run.toml").exists()) == (2, False)
    assert "shipped:quickstart" in refused.stderr


def test_the_shell_completes_the_users_presets(tmp_path: Path) -> None:
    folder = tmp_path / "xdg" / "prime-train" / "presets"
    folder.mkdir(parents=True)
    (folder / "my-own.toml").write_text("")
    words = {"_PRIME_TRAIN_COMPLETE": "complete_bash", "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    for line in ("prime-train presets show my", "prime-train estimate my", "prime-train run my"):
        asked = words | {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        assert prime_train(cwd=tmp_path, **asked).stdout.split() == ["my-own"], line
