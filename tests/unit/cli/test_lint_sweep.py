"""`prime-train lint` of a sweep: each of its configs is judged before anything is queued."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.cli.lint.files import check
from prime_train.cli.lint.fix import Repair
from prime_train.config.sweep import MOST_CONFIGS, Sweep, parse_sweep, read_sweep
from prime_train.core.errors import UserError
from tests.unit.away.plans import read_preset

WANDB = """\
program: base.toml
method: grid
parameters:
  optim.lr: {values: [1e-3, 3e-4]}
  batch:
    parameters:
      global_batch: {values: [8, 30]}
      micro_batch: {values: [4, 8]}
"""
HYDRA = "hydra:\n  sweeper:\n    params:\n      optim.lr: 1e-3,3e-4\n      batch.global_batch: choice(8,30)\n"
WORDS = 'base: base.toml\nconfigs:\n  - "optim.lr=1e-3,3e-4 +batch.global_batch=30"\n  - {batch: {micro_batch: 4}}\n'
TABLES = 'base = "base.toml"\n[[configs]]\n"optim.lr" = 0.001\n[[configs]]\nbatch.global_batch = 30\n'


def sweep_of(text: str, path: str = "sweep.yaml") -> Sweep:
    document = parse_sweep(text, path)
    assert document is not None
    return read_sweep(document)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(read_preset("quickstart")[1].text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "configs"),
    [("s.yaml", WANDB, 8), ("s.yaml", HYDRA, 4), ("s.yaml", WORDS, 3), ("s.toml", TABLES, 2)],
    ids=["wandb", "hydra", "words", "tables"],
)
def test_a_config_that_cannot_work_is_named_with_its_values(folder: Path, name: str, text: str, configs: int) -> None:
    (folder / name).write_text(text)
    output, ok = check(["base.toml", "+", name], output_format="concise")
    assert not ok
    (line,) = output.splitlines()
    assert f"s{Path(name).suffix}:" in line
    assert "error[BAT001]" in line
    assert f"of {configs} configs" in line
    assert "batch.global_batch = 30" in line
    row = text.splitlines()[int(line.split(":")[1]) - 1]
    assert "global_batch" in row or "configs" in row  # the key of the sweep
    (folder / name).write_text(text.replace("30", "16"))
    assert check(["base.toml", "+", name])[1]


def test_a_sweep_that_names_its_config_is_found_in_a_folder(folder: Path) -> None:
    (folder / "sweeps").mkdir()
    (folder / "sweeps" / "lr.yaml").write_text(WANDB.replace("base.toml", "../base.toml"))
    (folder / "sweeps" / "of-a-script.yaml").write_text(WANDB.replace("base.toml", "train.py"))
    output, ok = check(["."], output_format="json")
    assert not ok
    assert [one["path"] for one in json.loads(output)["files"]] == ["base.toml", "sweeps/lr.yaml"]


def test_a_key_with_another_name_is_named_with_it(folder: Path) -> None:
    (folder / "s.yaml").write_text("base: base.toml\nconfigs:\n  - {optim.learning_rate: 0.1}\n")
    output, ok = check(["s.yaml"], output_format="concise")
    assert not ok
    assert "its name here is optim.lr" in output


def test_a_renamed_key_of_prime_rl_is_named_with_its_successor(folder: Path) -> None:
    (folder / "rl.toml").write_text("max_steps = 10\n[trainer.model]\nname = 'a/b'\n[orchestrator]\nbatch_size = 8\n")
    (folder / "s.yaml").write_text("base: rl.toml\nconfigs:\n  - {orchestrator.micro_batch_size: 2}\n")
    single = folder / "one.toml"
    single.write_text((folder / "rl.toml").read_text() + "micro_batch_size = 2\n")
    of_file, _ = check([str(single)], output_format="json")
    of_sweep, _ = check(["s.yaml"], output_format="json")

    def on_key(output: str) -> set[tuple[str, str]]:
        found = [each for one in json.loads(output)["files"] for each in one["findings"]]
        return {(each["code"], each["fix"]) for each in found if each["key"].endswith("micro_batch_size")}

    assert on_key(of_sweep) == on_key(of_file) != set()


def test_a_sweep_over_a_run_on_audio_is_judged_in_a_folder(folder: Path) -> None:
    (folder / "base.toml").write_text(read_preset("audio-quickstart")[1].text)
    changes = ("{encoder: {heads: 5}}", "{n_mels: 64}", "{window_size: 10000}", "{classes: 3}", "{clip_s: 2.0}")
    listed = "".join(f"  - {{audio: {one}}}\n" for one in changes)
    (folder / "s.yaml").write_text(f"base: base.toml\nconfigs:\n{listed}")
    output, ok = check(["."], output_format="json")
    assert not ok
    found = [each for one in json.loads(output)["files"] for each in one["findings"]]
    codes = {(each["code"], each["key"]) for each in found if each["severity"] == "error"}
    named = ("audio.n_mels", "audio.window_size")
    assert codes == {
        ("AUD001", "audio.encoder.width"),
        ("AUD003", "audio.classes"),
        *(("CFG002", key) for key in named),
    }
    renamed, removed = ([each for each in found if each["key"] == key] for key in named)
    assert "its name here is audio.mels" in renamed[0]["what"]
    assert "no buffer is shuffled" in removed[0]["fix"]


def test_a_sweep_over_the_config_of_another_trainer_is_judged(folder: Path) -> None:
    base = "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 16\nmain_process_ip: 10.0.0.1\n"
    (folder / "a.yaml").write_text(base + "main_process_port: 29500\n")
    (folder / "s.yaml").write_text("base: a.yaml\nconfigs:\n  - num_processes=1,16\n")
    output, ok = check(["s.yaml"], output_format="concise")
    assert not ok
    assert "(in 1 of 2 configs: num_processes = 1)" in output


def test_what_all_configs_share_is_found_once_in_the_base(folder: Path) -> None:
    text = (folder / "base.toml").read_text().replace("[optim]", "[optim]\nlearnrate = 1", 1)
    (folder / "base.toml").write_text(text)
    (folder / "s.yaml").write_text("base: base.toml\nconfigs: ['optim.lr=1e-3,1e-4']\n")
    output, _ = check(["s.yaml"], output_format="concise")
    assert [line.partition(":")[0] for line in output.splitlines()] == ["base.toml"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WANDB.replace("base.toml", "gone.toml"), "which is not there"),
        (WANDB.replace("grid", "gird"), "there is no method 'gird'"),
        (WANDB.replace("{values: [8, 30]}", "{min: 0.5, max: 2}"), "batch.global_batch has no values"),
        (WANDB.replace("{values: [8, 30]}", "8"), "batch.global_batch has no values"),
        ("base: base.toml\nconfigs: []\n", "it sweeps over nothing"),
        ("base: base.toml\nconfigs: [3]\n", "'3' sets no key"),
        ("base: base.toml\nconfigs: [{run.name.x: 3}]\n", "cannot be set in base.toml"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_refused_with_four_parts(folder: Path, text: str, words: str) -> None:
    (folder / "s.yaml").write_text(text)
    with pytest.raises(UserError) as raised:
        check(["s.yaml"])
    error = raised.value
    assert words in error.what
    assert all((error.what, error.where, error.why, error.fix))


def test_a_sweep_is_not_fixed(folder: Path) -> None:
    (folder / "s.yaml").write_text(WANDB)
    with pytest.raises(UserError, match="cannot fix a sweep"):
        check(["s.yaml"], repair=Repair(write=True))


def test_a_secret_that_is_swept_over_is_not_shown(folder: Path) -> None:
    (folder / "s.yaml").write_text("base: base.toml\nconfigs: [{hub_token: abcdefgh, batch.global_batch: 30}]\n")
    output, _ = check(["s.yaml"], output_format="concise")
    assert "abcdefgh" not in output


def test_the_ends_of_a_range_are_judged() -> None:
    text = "method: bayes\nparameters:\n  a: {min: 1, max: 5}\n  b: {distribution: log_uniform, min: -1, max: 0}\n"
    values = {tuple(config.values()) for config in sweep_of(text).configs}
    assert values == {(one, two) for one in (1, 5) for two in (math.exp(-1), 1.0)}


def test_a_note_counts_the_judged(folder: Path) -> None:
    (folder / "s.yaml").write_text("base: base.toml\nconfigs: ['run.seed=range(0,40) run.max_steps=range(100,120)']\n")
    notes: list[UserError] = []
    assert check(["s.yaml"], unread=notes)[1]
    assert [note.what.partition(" configs")[0] for note in notes] == [f"{MOST_CONFIGS} of its 800"]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_each_value_is_in_a_config_and_no_config_is_there_twice(counts: list[int]) -> None:
    words = " ".join(f"k.a{number}={','.join(map(str, range(count)))}" for number, count in enumerate(counts))
    sweep = sweep_of(json.dumps({"configs": [words]}), "sweep.json")
    rows = [tuple(config.values()) for config in sweep.configs]
    assert len(rows) == len(set(rows)) == min(sweep.total, MOST_CONFIGS)
    assert sweep.total == math.prod(counts)
    assert all({row[number] for row in rows} == set(range(count)) for number, count in enumerate(counts))
