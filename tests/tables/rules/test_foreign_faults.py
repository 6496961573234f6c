"""Faults that the examples of the tables do not have: other keys, spellings, defaults, flags, files that name files.

Each fault has a twin that differs in one line and is right.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.unit.rules.examples import judge_files

_AXOLOTL = """\
base_model: meta-llama/Llama-3.2-3B
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 3
bf16: auto
"""
_LLAMA_FACTORY = """\
model_name_or_path: meta-llama/Llama-3.2-3B-Instruct
do_train: true
dataset: identity
template: llama3
cutoff_len: 4096
output_dir: saves/of-the-test
per_device_train_batch_size: 2
learning_rate: 1.0e-5
stage: sft
"""
_TRL = """\
model_name_or_path: Qwen/Qwen3-4B
dtype: bfloat16
dataset_name: trl-lib/tldr
output_dir: out
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
learning_rate: 1.0e-6
num_train_epochs: 1
"""
_SFT = f"{_TRL}max_length: 8192\n"
_HF = """\
model_name_or_path: roberta-base
output_dir: out
per_device_train_batch_size: 16
per_device_eval_batch_size: 16
num_train_epochs: 3
warmup_steps: 100
weight_decay: 0.01
"""
_ACCELERATE = """\
compute_environment: LOCAL_MACHINE
main_training_function: main
machine_rank: 0
num_machines: 1
num_processes: 4
"""
_STAGE_3 = '{"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}}'
_DEEPSPEED = """\
{
  "train_micro_batch_size_per_gpu": 8,
  "gradient_accumulation_steps": %d,
  "train_batch_size": 96,
  "zero_optimization": {"stage": 2}
}
"""
_OFFLOAD = """\
{
  // what stands on the disk
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8, "offload_param": {"device": "%s"}},
}
"""
_RUN = "python run_clm.py --model_name_or_path gpt2 --output_dir out --per_device_train_batch_size 4"
_FACTORY = (
    "llamafactory-cli train --stage sft --do_train --model_name_or_path m --dataset d --template t --output_dir o"
)
_BEST = "load_best_model_at_end: true\neval_strategy: steps\nsave_strategy: steps\n"


class PlantedFault(NamedTuple):
    """`wrong` and `right` are laid under `base` in a file `name`; `files` are beside it."""

    code: str
    name: str
    base: str
    wrong: str
    right: str
    files: tuple[tuple[str, str], ...] = ()


def _axolotl(code: str, wrong: str, right: str, *files: tuple[str, str]) -> PlantedFault:
    return PlantedFault(code, "config.yml", _AXOLOTL, wrong, right, files)


def _llama_factory(code: str, wrong: str, right: str, *files: tuple[str, str]) -> PlantedFault:
    return PlantedFault(code, "train/sft.yaml", _LLAMA_FACTORY, wrong, right, files)


def _script(code: str, wrong: str, right: str, *files: tuple[str, str]) -> PlantedFault:
    return PlantedFault(code, "job.sh", "", f"{wrong}\n", f"{right}\n", files)


FAULTS = (
    # axolotl: null for absent, settings in the table of FSDP, old names of keys, a value in quotes
    _axolotl("AXO001", "load_in_4bit: True\nadapter:\nlora_r:\n", "load_in_4bit: True\nadapter: qlora\nlora_r: 8\n"),
    _axolotl("AXO002", "load_in_8bit: true\nadapter: qlora\n", "load_in_8bit: true\nadapter: lora\n"),
    _axolotl(
        "AXO007",
        "optimizer: adamw_8bit\nfsdp_config:\n  version: 2\n  reshard_after_forward: true\n",
        "optimizer: adamw_torch_fused\nfsdp_config:\n  version: 2\n  reshard_after_forward: true\n",
    ),
    _axolotl(
        "AXO006",
        "optimizer: paged_adamw_8bit\nfsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_offload_params: true}\n",
        "optimizer: adamw_torch\nfsdp_version: 2\nfsdp_config: {fsdp_offload_params: true}\n",
    ),
    _axolotl(
        "AXO010", "rl: simpo\nsample_packing: true\nflash_attention: true\n", "rl: simpo\nsample_packing: false\n"
    ),
    _axolotl("AXO012", "streaming: yes\nmax_steps:\n", "streaming: yes\nmax_steps: 500\n"),
    _axolotl("AXO013", 'warmup_steps: "20"\nwarmup_ratio: 0.03\n', "warmup_ratio: 0.03\n"),
    _axolotl(
        "AXO022",
        "sequence_parallel_degree: 4\nsdp_attention: true\n",
        "sequence_parallel_degree: 4\nflash_attention: true\n",
    ),
    _axolotl("AXO019", "val_set_size: 0.0\neval_strategy: epoch\n", "val_set_size: 0.1\neval_strategy: epoch\n"),
    _axolotl(
        "AXO024",
        "activation_offloading: legacy\ngradient_checkpointing: off\n",
        "activation_offloading: legacy\ngradient_checkpointing: on\n",
    ),
    _axolotl(
        "AXO004",
        "adapter: lora\nload_in_8bit: true\ndeepspeed: of_mine/large.json\n",
        "adapter: lora\ndeepspeed: of_mine/large.json\n",
        ("of_mine/large.json", _STAGE_3),
    ),
    # LLaMA-Factory: defaults, words of YAML for true and false, a table or a file in a folder above
    _llama_factory(
        "LLF001",
        "finetuning_type: freeze\nquantization_bit: 8\nfp16: true\n",
        "finetuning_type: lora\nquantization_bit: 8\nfp16: true\n",
    ),
    _llama_factory(
        "LLF005",
        f"finetuning_type: full\npure_bf16: true\ndeepspeed: {_STAGE_3}\n",
        f"finetuning_type: full\nbf16: true\ndeepspeed: {_STAGE_3}\n",
    ),
    _llama_factory(
        "LLF014",
        "use_unsloth: true\ndeepspeed: shared/z.json\n",
        "use_unsloth: false\ndeepspeed: shared/z.json\n",
        ("shared/z.json", _STAGE_3),
    ),
    _llama_factory("LLF008", "streaming: true\nmax_steps: -1\n", "streaming: true\nmax_steps: 10_000\n"),
    _llama_factory("LLF009", "do_eval: yes\nval_size: 0.0\n", "do_eval: yes\nval_size: 0.05\n"),
    _llama_factory("LLF015", "stage: kto\nneat_packing: true\n", "neat_packing: true\n"),
    _llama_factory("LLF011", "use_badam: true\npure_bf16: true\n", "use_badam: false\npure_bf16: true\n"),
    _llama_factory("HFT004", "bf16: on\nfp16: yes\n", "bf16: on\nfp16: no\n"),
    # TRL and the Trainer: what holds without a line, numbers in quotes, null, numbers in two files
    PlantedFault(
        "HFT001", "hf.yaml", _HF, "load_best_model_at_end: true\neval_strategy: epoch\n", "eval_strategy: epoch\n"
    ),
    PlantedFault(
        "HFT002",
        "sft.yaml",
        _SFT,
        "load_best_model_at_end: true\neval_strategy: steps\nsave_steps: 25\n",
        "load_best_model_at_end: true\neval_strategy: steps\nsave_steps: 20\n",
    ),
    PlantedFault(
        "HFT002",
        "hf.yaml",
        _HF,
        _BEST + "eval_steps: '300'\nsave_steps: '500'\n",
        _BEST + "eval_steps: '250'\nsave_steps: '500'\n",
    ),
    PlantedFault("HFT009", "hf.yaml", _HF, "dataloader_prefetch_factor: 4\n", "dataloader_prefetch_factor:\n"),
    PlantedFault(
        "HFT008",
        "sft.yaml",
        _SFT,
        "deepspeed: adam.json\nmax_grad_norm: 0.5\n",
        "deepspeed: adam.json\nmax_grad_norm: 1.0\n",
        (("adam.json", '{"zero_optimization": {"stage": 1}, "gradient_clipping": 1.0}'),),
    ),
    PlantedFault("TRS006", "rloo.yaml", _TRL, "num_generations: 1\nbeta: 0.05\n", "num_generations: 4\nbeta: 0.05\n"),
    PlantedFault("TRS012", "sft.yaml", _TRL, "packing: true\nmax_length: ~\n", "packing: true\nmax_length: 2048\n"),
    PlantedFault(
        "TRS005",
        "grpo.yaml",
        _TRL,
        "num_generations: 6\ngeneration_batch_size: 66\n",
        "num_generations: 6\ngeneration_batch_size: 72\n",
    ),
    # accelerate and DeepSpeed: keys without their prefix, JSON, a file behind a file, comments, 5e8 as a number
    PlantedFault(
        "ACC005",
        "fsdp.yaml",
        _ACCELERATE,
        "distributed_type: FSDP\nfsdp_config: {cpu_ram_efficient_loading: true, sync_module_states: false}\n",
        "distributed_type: FSDP\nfsdp_config: {cpu_ram_efficient_loading: true, sync_module_states: true}\n",
    ),
    PlantedFault(
        "DSP001",
        "deepspeed.yaml",
        _ACCELERATE,
        "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: both.json}\n",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: one.json}\n",
        (
            ("both.json", '{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}, "bf16": {"enabled": true}}'),
            ("one.json", '{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}, "bf16": {"enabled": false}}'),
        ),
    ),
    PlantedFault(
        "ACC004",
        "deepspeed.yaml",
        _ACCELERATE,
        "distributed_type: DEEPSPEED\nmixed_precision: 'no'\ndeepspeed_config: {deepspeed_config_file: one.json}\n",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: one.json}\n",
        (("one.json", '{"zero_optimization": {"stage": 1}}'),),
    ),
    PlantedFault(
        "ACC011",
        "fsdp.yaml",
        _ACCELERATE,
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: SHARD_GRAD_OP}\n",
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: 'true'}\n",
    ),
    PlantedFault("DSP003", "ds.json", "", _DEEPSPEED % 5, _DEEPSPEED % 4),
    PlantedFault("DSP002", "ds.json", "", _OFFLOAD % "nvme", _OFFLOAD % "none"),
    PlantedFault(
        "DSP011",
        "ds.json",
        "",
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}}',
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 1.0}}}',
    ),
    # flags, alone and over the values of a file that they name
    _script("HFT004", f"{_RUN} --fp16 --bf16 true", f"{_RUN} --bf16 true"),
    _script(
        "HFT001",
        f"{_RUN} --load_best_model_at_end --eval_strategy=epoch",
        f"{_RUN} --load_best_model_at_end --eval_strategy=epoch --save_strategy=epoch",
    ),
    _script(
        "HFT009",
        f"{_RUN} --dataloader_prefetch_factor=2",
        f"{_RUN} --dataloader_prefetch_factor=2 --dataloader_num_workers=2",
    ),
    _script(
        "LLF001",
        f"{_FACTORY} --quantization_bit 8 --finetuning_type full --pure_bf16",
        f"{_FACTORY} --quantization_bit 8 --pure_bf16",
    ),
    _script(
        "TRS003",
        "accelerate launch --config_file three.yaml -m trl.scripts.grpo --config grpo.yaml",
        "accelerate launch --config_file three.yaml --num_processes 4 -m trl.scripts.grpo --config grpo.yaml",
        ("three.yaml", "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 3\n"),
        ("grpo.yaml", f"{_TRL}num_generations: 64\n"),
    ),
    _script(
        "ACC008",
        "accelerate launch --config_file two.yaml train.py",
        "accelerate launch --config_file two.yaml --main_process_ip 10.0.0.1 train.py",
        ("two.yaml", "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\n"),
    ),
    _script(
        "HFT008",
        f"torchrun --nproc_per_node 2 {_RUN.removeprefix('python ')} --deepspeed ds.json --bf16 True",
        f"torchrun --nproc_per_node 2 {_RUN.removeprefix('python ')} --deepspeed ds.json --bf16 True".replace("4", "8"),
        ("ds.json", '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 8}'),
    ),
    _script(
        "AXO010",
        "axolotl train packed.yaml --rl dpo",
        "axolotl train packed.yaml --rl dpo --sample-packing false",
        ("packed.yaml", f"{_AXOLOTL}sample_packing: true\nflash_attention: true\n"),
    ),
)


def _files(fault: PlantedFault, lines: str) -> dict[str, str]:
    """The main file comes first, so that it is the one that is judged."""
    keys = {line.partition(":")[0] for line in lines.split("\n")}
    base = "".join(line for line in fault.base.splitlines(keepends=True) if line.partition(":")[0] not in keys)
    return {fault.name: base + lines, **dict(fault.files)}


def _id(fault: PlantedFault) -> str:
    return f"{fault.code}-{fault.name}"


@pytest.mark.parametrize("fault", FAULTS, ids=_id)
def test_a_planted_fault_is_found(fault: PlantedFault) -> None:
    assert fault.code in {finding.code for finding in judge_files(_files(fault, fault.wrong)).findings}


@pytest.mark.parametrize("fault", FAULTS, ids=_id)
def test_its_twin_is_clean(fault: PlantedFault) -> None:
    assert judge_files(_files(fault, fault.right)).findings == ()
