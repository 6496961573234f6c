from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import typer

from prime_train.cli.estimate.command import estimate
from prime_train.core.errors import UserError
from prime_train.registry import gpus as gpu_registry
from prime_train.rules.judge import lint
from tests.system.estimate.test_shape import QWEN3, QWEN3_MOE
from tests.unit.cli.commands import clean_environment, prime_train

RL = """max_steps = 200
seq_len = 4096
[prime_train]
prime_rl = "2026-08"
[model]
name = "Qwen/Qwen3-4B"
[deployment]
num_train_gpus = 2
num_infer_gpus = 6
[orchestrator]
batch_size = 128
[inference.vllm]
data_parallel_size = 6
max_model_len = 4096
[trainer]
"""
H100 = "8xh100-80gb"


@pytest.fixture(autouse=True)
def _with_a_config(offline_folder: Path) -> None:
    (offline_folder / "rl.toml").write_text(RL)


def outcome(config: str, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, str]:
    code = 0
    try:
        estimate([config], **({"gpus": H100} | options))
    except typer.Exit as end:
        code = end.exit_code
    return code, capsys.readouterr().out


def document(config: str, capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(outcome(config, capsys, as_json=True, **options)[1])
    return found


def test_json_has_what_programs_were_promised(capsys: pytest.CaptureFixture[str]) -> None:
    told = document("rl.toml", capsys)
    assert told["version"] == 1
    assert told["model"] | {"source": ""} == {"id": "Qwen/Qwen3-4B", "params": 4022468096, "source": ""}
    memory = told["memory"]
    assert (memory["gpu"], memory["usable_gib"], memory["fits"], memory["advice"]) == ("h100-80gb", 79.2, True, [])
    for role in memory["roles"]:
        each = role["per_gpu"]
        assert each["low_gib"] <= each["reserved_gib"] <= each["high_gib"]
        assert sum(term["gib"] for term in each["terms"]) == pytest.approx(each["reserved_gib"], abs=0.01)
        assert {"name", "gib", "formula", "source"} == each["terms"][0].keys()
        needed = each["high_gib"] + each["outside_allocator_gib"]
        assert role["headroom_gib"] == pytest.approx(memory["usable_gib"] - needed, abs=0.01)
    throughput, cost = told["throughput"], told["cost"]
    assert throughput["step_s"].keys() == throughput["tokens_per_s"].keys() == {"low", "typical", "high"}
    assert 0 < throughput["mfu"] < 1
    assert throughput["basis"]
    for interval in ("usd_per_gpu_hour", "gpu_hours", "usd"):
        assert 0 < cost[interval]["low"] <= cost[interval]["typical"] <= cost[interval]["high"]
    assert {"prices_as_of", "sources"} <= cost.keys()
    assert told["assumptions"]


def test_people_read_terms_verdict_speed_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = outcome("rl.toml", capsys)
    assert code == 0
    for words in (
        "Qwen/Qwen3-4B, 4.0 B parameters",
        "trainer on 2 GPUs",
        "inference on 6 GPUs",
        "fits: trainer",
        "cost on demand",
    ):
        assert words in out
    assert " = " not in out
    assert "ZeRO, arXiv" in outcome("rl.toml", capsys, by_term=True)[1]


def test_exit_code_1_and_advice_where_it_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = outcome("rl.toml", capsys, gpus="8xrtx-4090")
    assert code == 1
    assert "does not fit: trainer" in out
    assert "advice\n  trainer." in out


def test_scaling_lays_the_training_over_gpus_in_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    ways = document("rl.toml", capsys, scaling=True)["scaling"]
    assert {way["strategy"] for way in ways} == {"one GPU", "FSDP", "HSDP", "DDP", "TP"}
    needed = [way["needed_gib"] for way in ways if way["strategy"] == "FSDP"]
    assert needed == sorted(needed, reverse=True)
    assert "largest micro-batch" in outcome("rl.toml", capsys, scaling=True)[1]
    for way in document("rl.toml", capsys, scaling=True)["scaling"]:
        assert (way["best_micro_batch"] or 0) <= way["largest_micro_batch"]
        assert (way["tokens_per_s"] is None) == (way["best_micro_batch"] is None)


def test_a_model_without_the_hub(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.json").write_text(json.dumps(QWEN3))
    by_file = document("rl.toml", capsys, model_config="config.json")
    assert by_file["model"]["params"] == 596049920
    folder = Path("local-model")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3))
    Path("local.toml").write_text(RL.replace("Qwen/Qwen3-4B", "./local-model"))
    by_folder = document("local.toml", capsys)
    assert by_folder["model"]["params"] == 596049920
    assert by_folder["memory"]["roles"] == by_file["memory"]["roles"]


def test_an_earlier_measurement_narrows_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    before = document("rl.toml", capsys)
    peak = before["memory"]["roles"][0]["per_gpu"]["reserved_gib"] * 1.05
    step_s = before["throughput"]["trainer_step_s"]["typical"] * 0.9
    Path("m.jsonl").write_text(
        "".join(json.dumps({"perf/peak_memory": peak, "time/step": step_s}) + "\n" for _ in range(9))
    )
    after = document("rl.toml", capsys, calibrate="m.jsonl")
    wide, narrow = before["memory"]["roles"][0]["per_gpu"], after["memory"]["roles"][0]["per_gpu"]
    assert narrow["reserved_gib"] == pytest.approx(peak, rel=1e-3)
    assert narrow["high_gib"] - narrow["low_gib"] < wide["high_gib"] - wide["low_gib"]
    speed, was = after["throughput"], before["throughput"]
    assert speed["trainer_step_s"]["typical"] == pytest.approx(step_s, rel=1e-3)
    assert speed["mfu"] == pytest.approx(was["mfu"] / 0.9, rel=0.01)
    wait = was["broadcast_s"]["typical"]
    faster = (step_s / 0.9 + wait) / (step_s + wait)
    assert speed["tokens_per_s"]["typical"] == pytest.approx(faster * was["tokens_per_s"]["typical"], rel=0.01)
    assert speed["basis"].startswith("measured by m.jsonl; before: ")
    assert after["memory"]["roles"][1] == before["memory"]["roles"][1]


def test_prices_of_a_file_take_the_place_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    Path("prices.toml").write_text(
        '[[price]]\nprovider = "ours"\ngpu = "h100-80gb"\ngpus = 8\nusd_per_gpu_hour = 1.25\nspot = false\n'
        'region = ""\nsource = "a contract"\nas_of = "2026-11-01"\n'
    )
    told = document("rl.toml", capsys, prices="prices.toml")
    assert told["cost"]["usd_per_gpu_hour"] == {"low": 1.25, "typical": 1.25, "high": 1.25}
    assert told["cost"]["sources"] == ["a contract"]


# For any machine, or without an end and so without a cost, or with a model folder that the user fetches, or on audio,
# whose speed was never measured.
_OTHERS = ("quickstart", "sft-quickstart", "rl-quickstart", "rl-vllm-cpu", "serve", "gpt2-124m", "llama3-8b-continue")
PRESETS = {
    name: path.read_text(encoding="utf-8")
    for name, path in gpu_registry.presets().items()
    if name not in _OTHERS and not name.startswith("audio-")
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_clean_and_fits_its_hardware(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(PRESETS[preset], f"{preset}.toml").findings == ()
    gpus = re.search(r"^# GPUs: (\S+)$", PRESETS[preset], re.MULTILINE)
    assert gpus is not None
    told = document(preset, capsys, gpus=gpus[1])
    assert told["memory"]["fits"]
    assert told["memory"]["gpus"] == told["memory"]["gpus_needed"]
    assert told["cost"] is not None


def test_there_is_a_preset_for_every_common_gpu() -> None:
    common = {"h100-80gb", "h200", "b200", "a100-80gb", "a100-40gb", "l40s", "a6000", "rtx4090", "rtx5090"}
    bundled = {"rl-vllm-1-gpu", "rl-vllm-1-plus-1", "rl-vllm-4-plus-4"}
    assert common | {f"rl-{gpu}" for gpu in common} | {"rl-single-gpu", "moe-small"} | bundled == PRESETS.keys()


def _without(config: dict[str, Any], key: str) -> str:
    return json.dumps({name: value for name, value in config.items() if name != key})


@pytest.mark.parametrize(
    ("config_json", "told"),
    [
        ("not json", "is not JSON"),
        ("[1]", "not an object"),
        ('{"model_type": "bert", "num_hidden_layers": 12}', "bert"),
        ("{}", "no config.json of a language model"),
        (_without(QWEN3, "vocab_size"), "vocab_size is missing"),
        (_without(QWEN3_MOE, "num_experts"), "num_experts is missing"),
        (json.dumps(QWEN3 | {"num_hidden_layers": -3}), "num_hidden_layers is -3"),
        (json.dumps(QWEN3 | {"hidden_size": 10**15}), "hidden_size is 1e+15"),
        (json.dumps(QWEN3 | {"hidden_size": 2**30, "intermediate_size": 2**30}), "no such model exists"),
    ],
)
def test_a_config_json_that_gives_no_model(config_json: str, told: str) -> None:
    Path("config.json").write_text(config_json)
    _refused(1, told, "rl.toml", model_config="config.json")


@pytest.mark.parametrize(
    ("text", "options", "code", "told"),
    [
        (RL, {"gpus": "8xh100"}, 2, "8xh100-80gb"),
        (RL, {"gpus": "0xh200"}, 2, "1 to 100,000"),
        (RL, {"gpus": "9999999xh200"}, 2, "1 to 100,000"),
        (RL, {"gpus": None}, 4, "--gpus 8xh100-80gb"),
        (RL.replace("Qwen3-4B", "Qwen3-4C"), {"offline": True}, 4, "did you mean Qwen/Qwen3-4B?"),
        (RL.replace("Qwen/Qwen3-4B", "./nowhere"), {}, 2, "there is no folder ./nowhere"),
        (RL, {"model_config": "nowhere.json"}, 2, "No such file"),
        (RL, {"calibrate": "nowhere"}, 2, "cannot be read"),
        (RL, {"prices": "nowhere"}, 2, "nowhere"),
        (RL.replace("seq_len = 4096", "seq_len = -4"), {}, 1, "seq_len"),
        (RL.replace("[trainer]", "[trainer"), {}, 1, "bad.toml:15:9"),
        ('[prime_train]\nprime_rl = "2026-08"\n[[train.source]]\nname = "x"\n', {}, 1, "neither trains nor serves"),
        (RL + "[trainer.optim]\nlr = nan\n", {}, 1, "not a finite number"),
        *(
            (
                RL.replace("[inference.vllm]", f"[inference.vllm]\ngpu_memory_utilization = {fraction}"),
                {},
                1,
                "not a fraction",
            )
            for fraction in ("0", "-1", "1.01", "1e300")
        ),
        (RL, {"prime_rl": "2026-5"}, 2, "no generation of prime-rl is called 2026-5"),
        ("[recipe]\nctx_tokens = 0\n", {}, 1, "recipe.ctx_tokens"),
        ('[recipe]\nprogram = "hf"\n', {}, 1, "recipe.model_name"),
        (
            '[run]\nname = "r"\nmax_steps = 1\n[model]\nlayers = 9999999999999\n[data]\nctx_tokens = 8\n'
            '[[data.sources]]\nkind = "python-stdlib"\n',
            {},
            1,
            "no such model exists",
        ),
    ],
)
def test_bad_input_is_reported_in_four_parts(
    text: str, options: dict[str, Any], code: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("bad.toml").write_text(text)
    _refused(code, told, "bad.toml", **options)


def test_what_is_piped_in_is_named_as_lint_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    _refused(1, "prime-train lint - shows all 2", "-")
    Path("my run.toml").write_text("")
    _refused(1, "prime-train lint 'my run.toml' shows all 2", "my run.toml")


@pytest.mark.parametrize("content", ["", "[]", "{}", "loss=3", '{"peak_reserved_gib": "much"}', '{"step_s": -1}'])
def test_a_measurement_that_is_none(content: str) -> None:
    Path("m.json").write_text(content)
    _refused(1, "--calibrate m.json", "rl.toml", calibrate="m.json")


def _refused(code: int, told: str, config: str, **options: Any) -> None:
    with pytest.raises(UserError) as refused:
        estimate([config], **({"gpus": H100} | options))
    error = refused.value
    assert error.exit_code == code, error
    assert all((error.where, error.what, error.why, error.fix))
    assert told in str(error)


def test_a_refusal_leaves_stdout_empty() -> None:
    done = prime_train("estimate", "rl.toml", "--gpus", "8xh1000", cwd=Path.cwd())
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    for label in ("error:", "\n  what  ", "\n  why   ", "\n  fix   "):
        assert label in done.stderr


def test_the_command_loads_nothing_heavy() -> None:
    probe = (
        "import sys; sys.argv = ['prime-train', 'estimate', 'rl.toml', '--gpus', '8xh100-80gb']\n"
        "from prime_train.cli.entry import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'transformers', 'datasets', 'tokenizers', 'huggingface_hub', 'rich'}\n"
        "print('HEAVY', sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_prices_of_unknown_age_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    row = '[[price]]\nprovider = "somecloud"\ngpu = "h100-80gb"\ngpus = 8\nusd_per_gpu_hour = 2.5\nspot = false\n'
    Path("prices.toml").write_text(row + 'source = "its page"\n')
    for as_json in (False, True):
        with contextlib.suppress(typer.Exit):
            estimate(["rl.toml"], gpus=H100, prices="prices.toml", as_json=as_json)
        assert "warning: 1 price, 1 of unknown age" in capsys.readouterr().err
    Path("prices.toml").write_text(row + f'source = "its page"\nas_of = "{date.today()}"\n')
    with contextlib.suppress(typer.Exit):
        estimate(["rl.toml"], gpus=H100, prices="prices.toml")
    assert "warning" not in capsys.readouterr().err


def test_one_gpu_for_both_is_reported_how_to_be_shared(capsys: pytest.CaptureFixture[str]) -> None:
    sharing = document("rl-single-gpu", capsys, gpus="rtx-4090")["memory"]["sharing"]
    assert sharing["starts_first"] == "inference"
    recommended = sharing["recommended"]
    assert sharing["smallest_fraction"] <= recommended["gpu_memory_utilization"] <= sharing["largest_fraction"]
    assert (recommended["batch_size"], recommended["rollouts_per_example"]) == (8, 2)  # as the preset has them
    assert recommended["max_model_len"] == 2048
    code, shown = outcome("rl-single-gpu", capsys, gpus="rtx-4090")
    assert code == 0
    assert "start inference first; gpu_memory_utilization that fits: between" in shown
    assert "8 rollouts in a batch, 2 per example, at most 2,048 tokens each" in shown


_TUNED = '[recipe]\nprogram = "hf"\nmodel_name = "Qwen/Qwen3-0.6B"\ngpus = 1\nctx_tokens = 2048\nmicro_batch = {}\n'


def test_metrics_of_another_micro_batch_are_refused_or_scaled(capsys: pytest.CaptureFixture[str]) -> None:
    Path("four.toml").write_text(_TUNED.format(4))
    Path("eight.toml").write_text(_TUNED.format(8))
    roles = [
        document(name, capsys, gpus="h200")["memory"]["roles"][0]["per_gpu"] for name in ("four.toml", "eight.toml")
    ]
    four, eight = (role["reserved_gib"] for role in roles)
    Path("m.json").write_text(json.dumps({"peak_reserved_gib": four}))
    _refused(1, "--calibrate m.json", "eight.toml", gpus="h200", calibrate="m.json")
    scaled = document("eight.toml", capsys, gpus="h200", calibrate="m.json", calibrate_config="four.toml")
    assert any("recipe.micro_batch was 4 and is 8" in line for line in scaled["assumptions"])
    role = scaled["memory"]["roles"][0]["per_gpu"]
    assert role["reserved_gib"] == pytest.approx(eight, rel=0.02)
    assert role["high_gib"] - role["low_gib"] > 0.5 * (roles[1]["high_gib"] - roles[1]["low_gib"])


def test_any_gpu_can_be_described(capsys: pytest.CaptureFixture[str]) -> None:
    Path("four.toml").write_text(_TUNED.format(4))
    found = document("four.toml", capsys, gpus="2xmi250", gpu_memory_gib=127.0, gpu_bf16_tflops=362.0)
    assert any(line.startswith("mi250: bandwidth of") for line in found["assumptions"])
    _refused(2, "--gpu-memory-gib", "four.toml", gpus="mi250", gpu_bf16_tflops=362.0)
    _refused(2, "rtx-4090", "four.toml", gpus="rtx-409")


def test_steps_come_from_the_user_or_from_a_loss_curve(capsys: pytest.CaptureFixture[str]) -> None:
    Path("four.toml").write_text(_TUNED.format(4))
    assert document("four.toml", capsys, gpus="h200", steps=77)["throughput"]["steps"] == 77
    lines = ({"step": n, "loss": 1.0 + 4.0 / n**0.5, "step_s": 1.0} for n in range(1, 100))
    Path("m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = document("four.toml", capsys, gpus="h200", calibrate="m.jsonl", target_loss=1.2)
    assert found["throughput"]["steps"] == pytest.approx(400, rel=0.1)
    assert any("until a loss of 1.2" in line for line in found["assumptions"])
    _refused(2, "--calibrate RUN", "four.toml", gpus="h200", target_loss=1.2)
    _refused(2, "give one", "four.toml", gpus="h200", target_loss=1.2, steps=3)


COMMAND = "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 2 --model_name_or_path Qwen/Qwen3-4B"


def test_a_command_line_is_read_as_the_script_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(f"{COMMAND}\n")
    options = ("--gpus", H100, "--offline", "--json")
    script = prime_train("estimate", "job.sh", *options, cwd=tmp_path)
    command = prime_train("estimate", "--from-command", COMMAND, *options, cwd=tmp_path)
    assert command.returncode == script.returncode
    assert command.stdout == script.stdout.replace("job.sh", "<command>")
    assert command.stderr == script.stderr.replace("job.sh", "<command>")


@pytest.mark.parametrize("words", [(), ("rl.toml", "--from-command", COMMAND), ("--from-command", "ls -l")])
def test_an_estimate_needs_one_training(words: tuple[str, ...], tmp_path: Path) -> None:
    refused = prime_train("estimate", *words, cwd=tmp_path)
    assert refused.returncode == 2
    assert re.search(r"(?s)what .*why .*fix ", refused.stderr)
