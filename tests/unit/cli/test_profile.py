"""`profile` of files and scripts, and its messages. Real runs are in tests/system/profile/test_planted_runs.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prime_train.cli.app import app
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.spans import Spans
from tests.unit.profile.planted import trainer_steps

SCRIPT = """
import time
from prime_train.profile_script import span, step
for number in range(1000):
    with step():
        with span("data"):
            time.sleep(0.02)
"""


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["profile", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_file_of_spans(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    spans = Spans("x", str(file))
    for one in trainer_steps([("forward", 1.0), ("checkpoint", 2.0)], steps=5):
        spans.add(one)
    spans.flush()
    html = tmp_path / "profile.html"
    assert "checkpoint-bound" in run(str(file), "--html", str(html))
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    found = json.loads(run(str(file), "--json", "--steps", "2"))
    assert (found["steps"], found["step_s"]) == (2, pytest.approx(3.0))


def test_a_script_ends_after_its_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    found = json.loads(run(str(script), "--json", "--steps", "3", "--warm-up", "1"))
    assert found["steps"] == 3
    assert found["diagnosis"]["class"] == "input-bound"


def test_metrics_of_prime_rl(tmp_path: Path) -> None:
    rows = [{"step": n, "time/step": 9.0, "time/wait_for_batch": 6.0, "time/forward_backward": 2.0} for n in range(8)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"torn', encoding="utf-8")
    found = json.loads(run(str(tmp_path), "--json"))
    assert found["diagnosis"]["class"] == "decode-bound"
    assert found["components"][0]["component"] == "rollouts"


@pytest.mark.parametrize(
    ("words", "what", "code"),
    [
        (("absent.jsonl",), "it cannot be read", ExitCode.USAGE),
        (("absent.py",), "it cannot be read", ExitCode.USAGE),
        (("empty.jsonl",), "no step is left after the warm-up", ExitCode.FINDINGS),
        (("plain.py",), "it wrote no spans", ExitCode.FINDINGS),
        (("quickstart", "--output", "full"), "it exists and is not an empty folder", ExitCode.USAGE),
    ],
)
def test_four_part_messages(
    words: tuple[str, ...], what: str, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").write_text("not a span\n", encoding="utf-8")
    (tmp_path / "plain.py").write_text("pass\n", encoding="utf-8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError) as raised:
        run(*words)
    assert raised.value.what.startswith(what)
    assert raised.value.exit_code == code
    assert all((raised.value.where, raised.value.why, raised.value.fix))


AXOLOTL = """base_model: Qwen/Qwen3-8B
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
adapter: lora
lora_r: 16
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 4
bf16: true
optimizer: adamw_torch
"""


def test_a_measurement_beside_the_estimate_for_another_trainer(tmp_path: Path) -> None:
    file, config = tmp_path / "spans.jsonl", tmp_path / "axolotl.yaml"
    config.write_text(AXOLOTL, encoding="utf-8")
    spans = Spans("x", str(file))
    for one in trainer_steps([("forward", 1.0), ("backward", 2.0)], steps=5):
        spans.add(one)
    spans.flush()
    found = json.loads(run(str(file), "--compare", str(config), "--gpus", "1xh100-80gb", "--json"))
    (step,) = [row for row in found["measured_over_estimated"] if row["name"] == "step"]
    assert step["measured"] == pytest.approx(3.0)
    assert 0.1 < step["estimated"] < 60
    with pytest.raises(UserError, match="--compare") as error:
        run(str(config))
    assert error.value.exit_code is ExitCode.USAGE


def test_a_config_to_compare_with_needs_a_training(tmp_path: Path) -> None:
    (tmp_path / "ds.yaml").write_text("distributed_type: NO\nmixed_precision: bf16\n", encoding="utf-8")
    with pytest.raises(UserError):
        run("absent.jsonl", "--compare", str(tmp_path / "ds.yaml"), "--gpus", "1xh100-80gb")
