"""A format is recognised by its keys, whatever the name of the file; files of other kinds are claimed by none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config import detect
from prime_train.config.foreign import recognise
from prime_train.config.foreign.conditions import parse
from prime_train.core.errors import UserError

OWN = {
    "axolotl": "base_model: m\nadapter: lora\ndatasets: [{path: d}]\nsequence_len: 9\nmicro_batch_size: 1\nrl:\n",
    "llama-factory": "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ntemplate: llama3\n",
    "llama-factory-v1": "model: m\ntrain_dataset: d.yaml\ndist_config: {name: fsdp2}\n",
    "trl": "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nlearning_rate: 2e-5\nmax_length: 2048\n",
    "hf": "per_device_train_batch_size: 1\nsave_steps: 10\nlogging_steps: 1\nwarmup_steps: 5\nbf16: true\n",
    "accelerate": "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n",
    "deepspeed": '{"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}',
    "torchtune": "model:\n  _component_: torchtune.models.llama3.llama3_8b\nbatch_size: 2\n",
    "torchtitan": '[job]\n[model]\nname = "llama3"\nflavor = "8B"\n[training]\nsteps = 9\n[optimizer]\nlr = 1e-4\n',
    "ms-swift": "model: m\ntrain_type: lora\nlora_rank: 8\nlearning_rate: 1e-4\n",
    "verl": "actor_rollout_ref:\n  model: {path: m}\ntrainer: {nnodes: 1}\n",
    "skypilot": "resources: {accelerators: H100:8}\nrun: python train.py\n",
}
NOT = {
    "compose": "services:\n  web: {image: nginx}\n",
    "workflow": "name: ci\non: push\njobs:\n  a: {runs-on: ubuntu}\n",
    "kubernetes": "apiVersion: batch/v1\nkind: Job\nmetadata: {name: base_model}\nspec: {template: {}}\n",
    "package": '{"name": "a", "version": "1.0.0", "scripts": {"run": "x"}, "dependencies": {}}',
    "ansible": "- hosts: all\n  tasks:\n    - name: resources\n      shell: run\n",
    "dbt": "name: p\nversion: '1'\nprofile: p\nmodel-paths: [models]\n",
    "pre-commit": "repos:\n  - repo: local\n    hooks: []\n",
    "openapi": "openapi: 3.0.0\ninfo: {title: t}\npaths: {}\n",
    "mergekit": "base_model: m\nmerge_method: ties\nmodels: [{model: a}]\nparameters: {density: 1}\ndtype: bf16\n",
    "gpt-neox": '{"train_batch_size": 8, "num_layers": 2, "hidden_size": 8, "train_iters": 9, "fp16": {"enabled": 1}}',
    "litgpt": "checkpoint_dir: c\nout_dir: o\nprecision: bf16\ndevices: 1\ntrain: {epochs: 1}\ndata: {class_path: x}\n",
    "model": '{"architectures": ["A"], "model_type": "llama", "hidden_size": 8, "vocab_size": 9}',
    "record": "lr: {value: 1, desc: x}\nbeta: {value: 2}\nbase_model: {value: m}\n",
    "jsonl": '{"base_model": 1}\n{"base_model": 2}\n',
    "words in a text": "readme: |\n  base_model: m\n  adapter: lora\n  datasets: d\n",
    "an own program": "base_model: m\nlora_r: 8\nload_in_4bit: true\nlr: 1e-4\n",
    "helm": "replicas: {{ .Values.n }}\nresources: {}\n",
    "list": "- base_model\n- adapter\n",
    "empty": "",
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("file", ["a.yaml", "config", "<stdin>"])
def test_a_format_is_recognised_by_its_content(name: str, file: str) -> None:
    path = "a.toml" if name == "torchtitan" and file == "a.yaml" else file
    reading = detect.read(OWN[name], path)
    assert (reading.dialect, reading.faults) == (name, ())
    assert reading.foreign is not None
    assert [part.format for part in reading.foreign] == [name]
    assert detect.is_config(OWN[name], "a.toml" if name == "torchtitan" else "a.json")


@pytest.mark.parametrize("name", NOT)
def test_another_file_is_claimed_by_none_and_refused_in_plain_words(name: str) -> None:
    for path in ("a.yaml", "a.json", "a.sh"):
        assert not detect.is_config(NOT[name], path)
        with pytest.raises(UserError) as refused:
            detect.read(NOT[name], path)
        error = refused.value
        assert error.exit_code == 2
        assert error.what
        assert error.why
        assert error.fix
        assert "Expected" not in str(error)


def test_every_file_of_other_kinds_here_is_left_alone() -> None:
    """The workflows, hooks and tables of this project have the suffixes that are searched."""
    root = Path(__file__).parents[4]
    files = [*root.glob(".github/**/*.y*ml"), *root.glob("*.yaml"), *root.glob("tests/golden/*.json")]
    assert len(files) > 5
    for path in files:
        assert not detect.is_config(path.read_text(encoding="utf-8"), str(path)), path


def test_a_broken_file_is_recognised_by_its_lines() -> None:
    text = OWN["axolotl"] + "lora_r:\n\t8\n"
    reading = detect.read(text, "a.yaml")
    assert reading.dialect == "axolotl"
    assert [(fault.code, fault.what) for fault in reading.faults] == [("CFG001", "a tab begins the line")]


def test_a_template_inside_a_value_makes_no_template_of_the_file() -> None:
    text = OWN["axolotl"] + "chat_template_jinja: |\n  {{ messages }}\nlora_r:\n\t8\n"
    assert detect.is_config(text, "a.yaml")
    assert not detect.is_config(OWN["axolotl"] + "lora_r: {{ rank }}\n", "a.yaml")


def test_the_second_document_of_a_file_is_a_part_too() -> None:
    reading = detect.read(OWN["skypilot"] + "---\n" + OWN["skypilot"], "tasks.yaml")
    assert reading.foreign is not None
    assert [part.format for part in reading.foreign] == ["skypilot", "skypilot"]


@pytest.mark.parametrize("kind", [*recognise.formats().values(), *recognise.others()], ids=lambda kind: kind.title)
def test_each_condition_is_in_the_grammar(kind: recognise.FileFormat | recognise.Other) -> None:
    parse(kind.when)
    assert kind.words


_WORDS = [
    "base_model: m\n",
    "adapter:",
    "- ",
    "{",
    "}",
    "[",
    ":",
    "\t",
    "#SBATCH -N 2\n",
    "'",
    '"',
    "&a ",
    "*a",
    "<<: ",
    "|\n",
    "---\n",
    "é",
    "\0",
    "$",
    "{{",
    "x = 1\n",
]


@given(
    st.lists(st.sampled_from(_WORDS) | st.text(max_size=3), max_size=20),
    st.sampled_from(["t.yaml", "t.json", "t.sh", "t"]),
)
def test_any_text_is_read_or_refused_with_four_parts(scraps: list[str], path: str) -> None:
    text = "".join(scraps)
    try:
        reading = detect.read(text, path)
    except UserError as error:
        parts = error.what, error.where, error.why, error.fix
        is_complete = all(parts)
    else:
        is_complete = reading.foreign is not None or path == "t"
    assert is_complete
