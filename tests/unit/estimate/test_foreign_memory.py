"""The files of published runs, as they stand there, give the memory that was measured beside them."""

from __future__ import annotations

import pytest
import tomli
import yaml

from prime_train.config.foreign.recipe.draft import to_recipe
from prime_train.config.foreign.values import ForeignPart, open_values
from prime_train.core.units import GIB
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.roles import memory_of
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.toml.document import Document

TITAN = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
[training]
batch_size = 2
seq_len = 8192
data_parallel_shard_degree = -1
"""
TITAN_LONG = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 1
seq_len = 65536
compile = true
data_parallel_shard_degree = 4
[experimental]
context_parallel_degree = 2
[float8]
enable_float8_linear = true
[activation_checkpoint]
mode = "full"
"""
TITAN_2025 = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]
[optimizer]
name = "AdamW"
[training]
local_batch_size = 2
seq_len = 8192
compile = true
[parallelism]
data_parallel_shard_degree = -1
"""
TUNE = """
model: {_component_: torchtune.models.llama3_2.llama3_2_3b}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}
optimizer: {_component_: torch.optim.AdamW, fused: true}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
batch_size: 2
gradient_accumulation_steps: 1
dtype: bf16
compile: true
enable_activation_checkpointing: true
optimizer_in_bwd: false
"""
TUNE_LORA = """
model: {_component_: torchtune.models.llama3_1.lora_llama3_1_70b, lora_attn_modules: [q_proj, v_proj, output_proj],
  apply_lora_to_mlp: true, lora_rank: 16}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}
optimizer: {_component_: torch.optim.AdamW, fused: true}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
batch_size: 2
gradient_accumulation_steps: 1
dtype: bf16
compile: true
enable_activation_checkpointing: true
"""
SWIFT = """
model: Qwen/Qwen2.5-7B-Instruct
tuner_type: lora
torch_dtype: bfloat16
per_device_train_batch_size: 1
gradient_accumulation_steps: 16
lora_rank: 8
target_modules: all-linear
max_length: 2048
attn_impl: flash_attn
"""
SWIFT_ZERO3 = """
model: Qwen/Qwen2.5-7B
tuner_type: full
torch_dtype: bfloat16
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
max_length: 8192
packing: true
deepspeed: zero3
use_liger_kernel: true
attn_impl: flash_attn
"""

# format, file, GPUs, GiB of the page beside the file
RUNS = [
    ("torchtitan", TITAN, "8xh100-nvl", 82.4),  # torchtitan benchmarks/llama3_h100_202412_torchtitan.md
    ("torchtitan", TITAN + "compile = true\n", "8xh100-nvl", 77.0),
    ("torchtitan", TITAN_LONG, "8xh100-nvl", 84.2),
    ("torchtitan", TITAN_2025, "32xh200", 47.96),  # torchtitan benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md
    ("torchtune", TUNE, "1xa100-80gb", 24.9),  # torchtune README.md
    ("torchtune", TUNE.replace("in_bwd: false", "in_bwd: true"), "1xa100-80gb", 23.1),
    (
        "torchtune",
        TUNE.replace("activation_checkpointing: true", "activation_checkpointing: false"),
        "1xa100-80gb",
        42.9,
    ),
    ("torchtune", TUNE_LORA, "8xa100-80gb", 27.6),
    ("ms-swift", SWIFT, "1xa100-80gb", 22.0),  # ms-swift examples/train, the headers of the scripts
    ("ms-swift", SWIFT.replace("tuner_type: lora", "tuner_type: full"), "1xa100-80gb", 76.0),
    ("ms-swift", SWIFT + "quant_bits: 4\nquant_method: bnb\n", "1xa100-80gb", 10.0),
    ("ms-swift", SWIFT_ZERO3, "4xa100-80gb", 44.0),
]


@pytest.mark.parametrize(
    ("format", "text", "gpus", "measured_gib"), RUNS, ids=[f"{run[0]} {run[2]} {run[3]} GiB" for run in RUNS]
)
def test_the_file_of_a_published_run_gives_its_memory(format: str, text: str, gpus: str, measured_gib: float) -> None:
    written = tomli.loads(text) if format == "torchtitan" else yaml.safe_load(text)
    values, hardware = open_values(written, exponents=True, references=True), hardware_from_name(gpus)
    draft = to_recipe((ForeignPart(format, values, Document(text, "config", values)),), hardware.gpus)
    assert draft is not None
    assert not draft.not_known
    shape = shape_from_registry(draft.recipe.model_name or "")
    assert shape is not None
    (trainer,) = memory_of(draft.run, hardware, shape)[0].roles
    memory = trainer.memory.allocated or trainer.memory.reserved
    assert memory.typical / GIB == pytest.approx(measured_gib, rel=0.2)
    assert memory.high / GIB >= measured_gib
