"""Launch scripts and command lines as parts: flags, directives, the launch, slips."""

from __future__ import annotations

from typing import Any

import pytest

from prime_train.config.foreign.arguments import typed
from prime_train.config.foreign.scope import UNKNOWN, Scope
from prime_train.config.foreign.scripts import read_command, read_parts
from prime_train.config.foreign.values import Open, PartialValues


def _part(text: str, format_: str) -> dict[str, Any]:
    (part,) = (part for part in read_parts(text, "job.sh") if part.format == format_)
    return dict(part.values)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("1e-5", 1e-5),
        ("True", True),
        ("no", "no"),
        ("None", "None"),
        ("null", None),
        ("auto", Open("auto")),
        ("[a,b]", ["a", "b"]),
        ('{"use_reentrant": false}', {"use_reentrant": False}),
        ("{broken", "{broken"),
        ("[*x]", Open("[*x]")),
        ("9" * 30, float("9" * 30)),
    ],
)
def test_a_word_has_a_type(text: str, value: object) -> None:
    assert typed(text) == value


def test_flags_and_overrides() -> None:
    flags = "--config-name ppo a.b=1 a.c='x y' +d=null --names p q --bf16 --lr=2 --lr=3 t.f=$HOME/x"
    command = f"python -m verl.trainer.main_ppo {flags}"
    assert _part(command, "verl") == {
        "config_name": "ppo",
        "a": {"b": 1, "c": "x y"},
        "d": None,
        "names": ["p", "q"],
        "bf16": True,
        "lr": 3,
        "t": {"f": Open("$HOME/x")},
    }


@pytest.mark.parametrize(
    ("command", "formats"),
    [
        (
            "accelerate launch --config_file a.yaml train.py --per_device_train_batch_size 4",
            {"accelerate-launch", "hf"},
        ),
        (
            "python3 -m torch.distributed.run --nproc_per_n 4 -m torchtitan.train --job.config_file x",
            {"torchrun", "torchtitan"},
        ),
        ("deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --lr 1", {"deepspeed-launch", "openrlhf"}),
        ("A=1 nohup uv run --with x llamafactory-cli train a.yaml &", {"llama-factory"}),
        ("docker run --gpus all -v a:b image bash -c 'vllm serve m --tensor-parallel-size 8'", {"vllm-serve"}),
        ("ray job submit --address x -- python3 -m verl.trainer.main_ppo a.b=1", {"ray-job", "verl"}),
        ("tune run --nproc_per_node 2 lora_finetune_distributed --config x", {"torchrun", "torchtune"}),
        ("pkill -f 'vllm serve'", set()),
        ("echo torchrun train.py", set()),
        ("grep -r torchrun .", set()),
        ("mpirun -np 4 python simulate.py", set()),
    ],
)
def test_formats_of_a_command(command: str, formats: set[str]) -> None:
    assert {part.format for part in read_command(command)} - {"launch", "shell", "ray-job"} == formats - {"ray-job"}


def test_a_command_with_more_flags_elsewhere_leaves_absent_keys_unknown() -> None:
    part = next(
        part for part in read_command('torchrun train.py --per_device_train_batch_size 2 "$@"') if part.format == "hf"
    )
    assert isinstance(part.values, PartialValues)
    scope = Scope(part.values, {"bf16": False})
    assert scope.value(("per_device_train_batch_size",)) == 2
    assert scope.value(("bf16",)) is UNKNOWN
    assert scope.is_written(("bf16",)) is UNKNOWN


@pytest.mark.parametrize(
    ("script", "facts"),
    [
        ("torchrun --nproc_per_node 8 --nnodes 2 t.py", {"kind": "torchrun", "nproc": 8, "nnodes": 2, "world": 16}),
        ("torchrun --nproc_per_node gpu t.py", {"kind": "torchrun", "nproc": Open("gpu"), "nnodes": 1}),
        ("torchrun --nproc_per_node 8 --nnodes 1:4 t.py", {"nproc": 8, "nnodes": Open("1:4")}),
        ("torchrun --rdzv-endpoint=localhost:29500 t.py", {"address": "localhost", "port": 29500}),
        ("accelerate launch --num_processes 16 --num_machines 2 t.py", {"world": 16, "nproc": 8, "kind": "accelerate"}),
        ("deepspeed --num_gpus 4 t.py", {"kind": "deepspeed", "nproc": 4}),
        ("python -m verl.trainer.main_ppo", {"kind": "python", "world": 1, "everywhere": False}),
        ("NPROC_PER_NODE=4 swift sft --model m", {"kind": "torchrun", "nproc": 4, "world": 4}),
        ("export CUDA_VISIBLE_DEVICES=0,1\ntorchrun t.py", {"devices": "0,1"}),
        (
            "srun -N2 --ntasks-per-node 4 python -m verl.trainer.main_ppo",
            {"kind": "srun", "world": 8, "everywhere": True},
        ),
        ("srun torchrun --node_rank $SLURM_NODEID t.py", {"rank_outside": True, "everywhere": True}),
        ('srun bash -c "torchrun --node_rank $SLURM_NODEID t.py"', {"rank_outside": True, "everywhere": True}),
        ("srun bash -c 'torchrun --node_rank $SLURM_NODEID t.py'", {"rank_outside": False, "everywhere": True}),
        (
            'srun bash -c "torchrun --node_rank \\$SLURM_NODEID t.py"',
            {"rank_outside": False, "rank": Open("$SLURM_NODEID")},
        ),
    ],
)
def test_facts_of_a_launch(script: str, facts: dict[str, Any]) -> None:
    found = _part(script, "launch")
    assert {key: found.get(key) for key in facts} == facts


def test_directives_of_slurm() -> None:
    script = (
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node 8\n#SBATCH -t 4:00:00 # hours\n#SBATCH --gres=gpu:a100:4\n"
        "#SBATCH --signal=B:USR1@120\ntrap save USR1\n#SBATCH -N 4\nsrun python train.py\n"
    )
    assert _part(script, "sbatch") == {
        "nodes": 2,
        "ntasks_per_node": 8,
        "time": "4:00:00",
        "gres": "gpu:a100:4",
        "signal": "B:USR1@120",
        "batch": {"trap": True, "requeues": False, "gpus_per_node": 4, "ignored_line": 7},
    }


def test_directives_in_a_heredoc_are_those_of_the_job() -> None:
    script = "N=2\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=$N --ntasks-per-node=1\nsrun torchrun t.py\nEOF\n"
    found = _part(script, "sbatch")
    assert (found["nodes"], found["ntasks_per_node"]) == (Open("$N"), 1)
    assert "ignored_line" not in found["batch"]


@pytest.mark.parametrize(
    ("script", "slip", "line"),
    [
        ("torchrun t.py \\\n  --a 1 \\\n  # --b 2 \\\n  --c 3\n", {"comment": "--c"}, 3),
        ("torchrun t.py \\\n\n  --c 3\n", {"empty_line": "--c"}, 2),
        ("torchrun t.py \\  \n  --c 3\n", {"blank_behind_backslash": "--c"}, 1),
        ("torchrun t.py \u2013-lr 3\n", {"typographic": "\u2013-lr"}, 1),
        ("torchrun t.py \\\n  --c 3 \\\n\necho\n", {}, None),
        ("A=(\n --a 1 \\\n # b\n --c 2)\ntorchrun t.py ${A[@]}\n", {}, None),
        ("# torchrun t.py \\\n  --c 3\ntorchrun t.py\n", {}, None),
    ],
)
def test_slips(script: str, slip: dict[str, str], line: int | None) -> None:
    (part,) = (part for part in read_parts(script, "job.sh") if part.format == "shell")
    assert part.values == slip
    places = [place for key in slip if (place := part.document.place((key,))) is not None]
    assert [place.key.line for place in places] == ([line] if line else [])


def test_each_start_has_its_own_facts() -> None:
    parts = read_parts("torchrun --nproc_per_node 2 a.py\ntorchrun --nproc_per_node 4 b.py\n", "job.sh")
    assert [(part.start, part.values["nproc"]) for part in parts if part.format == "launch"] == [(1, 2), (2, 4)]


def test_a_config_in_a_heredoc_has_places_in_the_script() -> None:
    config = '{"train_batch_size": 8,\n "zero_optimization": {"stage": 2}}'
    script = f"cat > ds.json <<EOF\n{config}\nEOF\ndeepspeed t.py --deepspeed ds.json\n"
    part = next(part for part in read_parts(script, "job.sh") if part.format == "deepspeed")
    place = part.document.place(("zero_optimization", "stage"))
    assert place is not None
    assert (place.key.line, part.document.path) == (3, "job.sh")


@pytest.mark.parametrize(
    ("flags", "start"),
    [(("", "--deepspeed ./ds.json"), 2), (("--deepspeed ds.json",) * 2, 0), (("--deepspeed other.json",) * 2, 0)],
)
def test_a_config_in_a_heredoc_belongs_to_the_one_start_that_names_it(flags: tuple[str, str], start: int) -> None:
    config = '{"train_batch_size": 8, "zero_optimization": {"stage": 2}}'
    starts = "".join(f"deepspeed t.py --per_device_train_batch_size 2 {flag}\n" for flag in flags)
    parts = read_parts(f"cat > ds.json <<EOF\n{config}\nEOF\n{starts}", "job.sh")
    assert [part.start for part in parts if part.format == "deepspeed"] == [start]


def test_what_a_part_of_a_script_lacks_is_at_its_command_or_its_file() -> None:
    config = '{"train_batch_size": 8,\n "zero_optimization": {"stage": 2}}'
    command = "NCCL_DEBUG=INFO torchrun --nproc_per_node 2 t.py --per_device_train_batch_size 2"
    script = f"cat > ds.json <<EOF\n{config}\nEOF\nbash <<EOF\n{command}\nEOF\n"
    found: dict[str, tuple[int, int]] = {}
    for part in read_parts(script, "job.sh"):
        place = part.document.nearest(("what", "is", "absent"))
        found |= {} if place is None else {part.format: (place.key.line, place.key.column)}
    assert found == {"deepspeed": (2, 1), "torchrun": (6, 17), "hf": (6, 17), "launch": (6, 17)}


def test_files_are_not_called_missing_behind_cd() -> None:
    parts = read_parts("cd /workspace\ntorchrun t.py --per_device_train_batch_size 2\n", "job.sh")
    assert {part.moved for part in parts if part.start} == {True}


def test_a_default_of_the_script_is_called_one() -> None:
    parts = read_parts("N=${N:-8}\ntorchrun --nproc_per_node $N --nnodes 2 t.py\n", "job.sh")
    part = next(part for part in parts if part.format == "torchrun")
    places = [part.document.place((key,)) for key in ("nproc_per_node", "nnodes")]
    assert [place.written for place in places if place] == ["8 (default of the script)", "2"]
    assert part.values["nproc_per_node"] == 8
