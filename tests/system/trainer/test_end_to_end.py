"""`prime-train run` over every kind of source, to a Hugging Face folder and on from it, alone and by two processes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from prime_train.core.rundir import RunDir
from prime_train.events import TrainerFinished, TrainerStarted
from prime_train.toml.document import to_toml
from prime_train.trainer.device import pick
from tests import fork_server
from tests.unit.cli.commands import prime_train
from tests.unit.trainer import tiny


def documents(count: int) -> list[str]:
    draw = random.Random(0)
    words = ["alpha", "beta", "gamma", "delta", "loss", "step", "token"]
    return ["\n".join(" ".join(draw.choices(words, k=9)) for _ in range(draw.randint(1, 12))) for _ in range(count)]


def write_source(folder: Path, kind: str) -> dict[str, str]:
    """Text of some kind under `folder`, and the source that names it."""
    import datasets  # takes a second: not in every worker

    texts = documents(150)
    folder.mkdir()
    table = datasets.Dataset.from_dict({"body": texts})
    match kind:
        case "one.txt":
            (folder / kind).write_text("\n".join(texts), encoding="utf-8")
            return {"kind": "files", "path": str(folder / kind)}
        case "many.jsonl":
            (folder / kind).write_text("".join(json.dumps({"body": text}) + "\n" for text in texts), encoding="utf-8")
            return {"kind": "files", "path": str(folder / kind), "text_field": "body"}
        case "many.parquet":
            table.to_parquet(str(folder / kind))
            return {"kind": "files", "path": str(folder), "text_field": "body"}
        case "dataset":
            datasets.DatasetDict(train=table).save_to_disk(str(folder / kind))
            return {"kind": "hf-dataset", "path": str(folder / kind), "text_field": "body"}
    raise AssertionError(kind)


def config(source: dict[str, str], **sections: Any) -> dict[str, Any]:
    return {
        "run": {"name": "small", "max_steps": 6, "dir": "runs"},
        "model": {"layers": 2, "hidden_size": 32, "heads": 2, "kv_heads": 1},
        "data": {"sources": [source], "ctx_tokens": 32},
        "tokenizer": {"vocab_size": 300},
        "batch": {"micro_batch": 4},
        "optim": {"lr": 0.01},
        "checkpoint": {"interval_steps": 3, "final": "hf"},
        "eval": {"batches": 2, "prompts": ["alpha"], "sample_tokens": 4},
    } | sections


def trained(folder: Path, asked: dict[str, Any]) -> RunDir:
    """The run directory of a run that `prime-train run` has finished."""
    folder.mkdir(exist_ok=True)
    sections = (f"{name} = {to_toml(values)}\n" for name, values in asked.items())
    (folder / "run.toml").write_text("".join(sections), encoding="utf-8")
    variables = fork_server.variables() | {"OMP_NUM_THREADS": "1", "PRIME_TRAIN_CACHE": str(folder / "cache")}
    done = prime_train("run", "run.toml", cwd=folder, **variables)
    run_dir = RunDir(folder / "runs" / "small")
    assert done.returncode == 0, done.stderr
    finished = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFinished)]
    assert [event.step for event in finished] == [asked["run"]["max_steps"]]
    return run_dir


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("end-to-end")


@pytest.fixture(scope="module")
def source(folder: Path) -> dict[str, str]:
    return write_source(folder / "text", "one.txt")


@pytest.fixture(scope="module")
def exported(folder: Path, source: dict[str, str]) -> RunDir:
    """A run on a single .txt, long enough that its weights are better than fresh ones."""
    return trained(folder / "exported", config(source, run={"name": "small", "max_steps": 40}))


@pytest.mark.parametrize("kind", ["many.jsonl", "many.parquet", "dataset"])
def test_every_kind_of_source_trains(tmp_path: Path, kind: str) -> None:
    run_dir = trained(tmp_path, config(write_source(tmp_path / "text", kind)))
    assert [line["step"] for line in tiny.metrics(run_dir)] == list(range(1, 7))


def test_transformers_loads_the_exported_folder_and_generates_from_it(exported: RunDir) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer  # takes seconds: not in every worker

    tokenizer: Any = AutoTokenizer.from_pretrained(exported.final)
    model: Any = AutoModelForCausalLM.from_pretrained(exported.final)
    prompt = tokenizer("alpha beta", return_tensors="pt")
    with torch.no_grad():
        out = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert out.shape[1] > prompt["input_ids"].shape[1]
    assert tokenizer.decode(out[0]).startswith("alpha beta")


@pytest.mark.parametrize("dp_shard", [1, 2])
def test_two_processes_go_on_from_exported_weights(
    tmp_path: Path, source: dict[str, str], exported: RunDir, dp_shard: int
) -> None:
    """In bf16 where this CPU has it, and with the global batch in tokens."""
    from transformers import AutoModelForCausalLM

    asked = config(
        source,
        model={"path": str(exported.final)},
        tokenizer={"path": str(exported.final)},
        parallel={"processes": 2, "dp_shard": dp_shard},
        batch={"micro_batch": 2, "global_batch_tokens": 8 * 32},
        precision={"compute": bf16_or_fp32()},
    )
    run_dir = trained(tmp_path, asked)
    started = [event for event in tiny.events(run_dir) if isinstance(event, TrainerStarted)]
    assert [(event.world_size, event.precision) for event in started] == [(2, bf16_or_fp32())] * 2
    lines = tiny.metrics(run_dir)
    assert 7 * 32 < lines[0]["tokens"] <= 8 * 32
    assert lines[0]["loss"] < 0.8 * tiny.metrics(exported)[0]["loss"]
    assert (run_dir.final / "config.json").read_text() == (exported.final / "config.json").read_text()
    AutoModelForCausalLM.from_pretrained(run_dir.final)


def bf16_or_fp32() -> str:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else pick("fp32").compute
