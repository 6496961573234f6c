"""Fine-tuning on chats: real trainers on solved tasks, killed, resumed, and by two processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_train import spec
from prime_train.checkpoints import layout, removal
from prime_train.config import run_toml
from prime_train.environments.load import open_environment
from prime_train.events import CheckpointSaved, Sampled, TrainerFailed, TrainerFinished
from prime_train.registry import gpus
from prime_train.spec import RunSpec
from prime_train.spec.rl import TaskSource
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.evaluation.evaluate import Sampling, generate
from prime_train.trainer.model import hf
from prime_train.trainer.model.decoder import build
from tests.system.trainer.test_resume import contents, differences
from tests.unit.trainer import tiny
from tests.unit.trainer.chats.chats import PHI, write_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))


def chat_run(folder: Path, **parts: Any) -> RunSpec:
    """Ten steps on solved tasks of two environments."""
    run = tiny.run_spec(folder)
    given: dict[str, Any] = {
        "run": spec.Run(name="tiny", kind="sft", max_steps=10, seed=7),
        "tasks": (TaskSource(kind="reverse-text"), TaskSource(kind="calculator")),
        "data": replace(run.data, sources=(spec.Source(kind="demonstrations", count=60),), ctx_tokens=192),
        "eval": replace(run.eval, prompts=("Reverse: abc",)),
    }
    return replace(run, **(given | parts))


def test_ten_steps_are_five_a_kill_and_five_more(tmp_path: Path) -> None:
    run = chat_run(tmp_path, checkpoint=spec.Checkpoint(interval_steps=5, keep_every_steps=5))
    straight = tiny.prepare(tmp_path / "straight", run)
    code, output = tiny.train(straight)
    assert code == 0, output
    (sampled,) = [event for event in tiny.events(straight) if isinstance(event, Sampled) and event.step == 10]
    assert sampled.prompt == "Reverse: abc"

    killed = tiny.prepare(tmp_path / "killed", replace(run, run=replace(run.run, max_steps=10**6)))
    process = tiny.start(killed)
    tiny.until(lambda: any(isinstance(event, CheckpointSaved) and event.step == 5 for event in tiny.events(killed)))
    tiny.kill(process)
    tiny.prepare(killed.path, run)
    for later in layout.scan(killed.checkpoints)[:-1]:  # saved before the kill arrived
        removal.remove(later.path)
    assert tiny.train(killed, number=2, resume_step=5)[0] == 0
    one, other = (contents(path.checkpoint(10), tmp_path / "one.pt") for path in (straight, killed))
    assert differences(one, other) == []
    assert [line["loss"] for line in tiny.metrics(straight)] == [line["loss"] for line in tiny.metrics(killed)]


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    run = chat_run(tmp_path, eval=spec.Eval(interval_steps=None, batches=1, tasks=2))
    one = tiny.prepare(tmp_path / "one", run)
    two = tiny.prepare(
        tmp_path / "two",
        replace(run, parallel=spec.Parallel(processes=2), batch=spec.Batch(micro_batch=2, global_batch=4)),
    )
    assert tiny.train(one)[0] == 0
    code, output = tiny.train(two, processes=2)
    assert code == 0, output
    expected = [line["loss"] for line in tiny.metrics(one)]
    assert [line["loss"] for line in tiny.metrics(two)] == pytest.approx(expected, abs=1e-4)
    assert [line["tokens"] for line in tiny.metrics(two)] == [line["tokens"] for line in tiny.metrics(one)]


def test_a_template_that_writes_no_calls_ends_the_run(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", PHI)
    run_dir = tiny.prepare(tmp_path / "run", chat_run(tmp_path, tokenizer=spec.Tokenizer(path=str(folder))))
    assert tiny.train(run_dir)[0] == 5
    (failed,) = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed)]
    assert failed.where == f'calculator, task 0 with tokenizer.path = "{folder}": tokenizer_config.json'
    assert failed.what.startswith("the chat template writes nothing of the call of calculate in message 2")


def test_a_row_that_is_no_chat_ends_the_run(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"messages": 3}\n', encoding="utf-8")
    run = chat_run(tmp_path)
    run_dir = tiny.prepare(
        tmp_path / "run", replace(run, data=replace(run.data, sources=(spec.Source(kind="files", path=str(rows)),)))
    )
    assert tiny.train(run_dir)[0] == 5
    (failed,) = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed)]
    assert failed.where == f"{rows}:2"
    assert "messages is a number" in failed.what


def test_the_quickstart_learns_to_reverse_words_that_it_never_saw(tmp_path: Path) -> None:
    preset = run_toml.read(gpus.presets()["sft-quickstart"].read_text(), "sft-quickstart").run
    assert preset is not None
    run_dir = tiny.prepare(tmp_path / "run", preset)
    code, output = tiny.train(run_dir)
    assert code == 0, output
    assert [event.step for event in tiny.events(run_dir) if isinstance(event, TrainerFinished)] == [
        preset.run.max_steps
    ]

    # The exported folder has the weights, the tokenizer and the template.
    folder = run_dir.final
    tokenizer = load_chat_tokenizer(replace(preset, tokenizer=spec.Tokenizer(path=str(folder))))
    model = build(hf.read_config(folder), 0)
    hf.load_weights(model, folder)
    environment = open_environment(preset.tasks[0], preset.run.seed)
    tasks = [environment.task("held_out", number) for number in range(64)]
    sampling = Sampling(new_tokens=8, ctx_tokens=64, temperature=0, seed=0, stop_tokens=tokenizer.stop_tokens)
    answers = generate(model, [tokenizer.prompt_tokens(task.messages) for task in tasks], sampling)
    rewards = [
        environment.score(task, (*task.messages, tokenizer.parse_answer(answer)))
        for task, answer in zip(tasks, answers, strict=True)
    ]
    assert sum(rewards) / len(rewards) > 0.9

    from transformers import AutoModelForCausalLM, AutoTokenizer  # takes seconds: not in every worker

    theirs: Any = AutoTokenizer.from_pretrained(folder)
    prompt = theirs.apply_chat_template(
        [{"role": "user", "content": tasks[0].messages[0].content}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    ours = tokenizer.prompt_tokens(tasks[0].messages)
    assert tuple(prompt["input_ids"][0].tolist()) == ours
    their_model: Any = AutoModelForCausalLM.from_pretrained(folder)
    generated = their_model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert theirs.decode(generated[0, len(ours) :], skip_special_tokens=True) == tokenizer.decode(answers[0])
