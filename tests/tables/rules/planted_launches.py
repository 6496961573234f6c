"""Faults in launch scripts and in configs of torchtitan, torchtune and SkyPilot, each beside a healthy twin.

A pair is a base and two texts for a place in it: one that makes the fault, one that does not. Only the fault is found.
"""

from __future__ import annotations

from typing import NamedTuple

TORCHTITAN = """\
[job]
dump_folder = "./out"
description = "Llama 3 70B"

[model]
name = "llama3"
flavor = "70B"

[optimizer]
name = "AdamW"
lr = 1.5e-4

[training]
local_batch_size = 8
seq_len = 8192
max_norm = 1.0
steps = 20000

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 1
context_parallel_degree = 1

[checkpoint]
enable = true
interval = 500
last_save_model_only = false

[activation_checkpoint]
mode = "full"
"""

TORCHTUNE = """\
output_dir: /shared/qwen
model:
  _component_: torchtune.models.qwen2_5.qwen2_5_7b_instruct
tokenizer:
  _component_: torchtune.models.qwen2_5.qwen2_5_tokenizer
  path: /shared/Qwen2.5-7B-Instruct/vocab.json
  max_seq_len: 8192
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /shared/Qwen2.5-7B-Instruct
  output_dir: ${output_dir}
resume_from_checkpoint: False
dataset:
  _component_: torchtune.datasets.chat_dataset
  source: json
  packed: True
batch_size: 2
epochs: 3
optimizer:
  _component_: torch.optim.AdamW
  lr: 5e-6
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
gradient_accumulation_steps: 8
dtype: bf16
enable_activation_checkpointing: True
enable_activation_offloading: False
compile: False
"""

VERL = """\
set -x
GPUS=8
NODES=4
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/train.parquet \\
    data.train_batch_size=512 \\
    data.max_prompt_length=2048 \\
    data.max_response_length=8192 \\
    data.filter_overlong_prompts=True \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-32B \\
    actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=True \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    trainer.n_gpus_per_node=$GPUS \\
    trainer.nnodes=$NODES \\
    trainer.save_freq=10 \\
    trainer.total_epochs=5
"""

OPENRLHF = """\
python3 -m openrlhf.cli.train_ppo_ray \\
    --pretrain meta-llama/Llama-3.1-8B-Instruct --remote_rm_url /shared/reward.py \\
    --prompt_data questions --input_key prompt --apply_chat_template \\
    --actor_num_nodes 1 --actor_num_gpus_per_node 8 \\
    --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --vllm_gpu_memory_utilization 0.5 \\
    --advantage_estimator rloo --n_samples_per_prompt 4 \\
    --rollout_batch_size 256 --train_batch_size 256 --micro_train_batch_size 8 \\
    --zero_stage 3 --bf16 --save_steps 50 --load_checkpoint
"""

MEGATRON = """\
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
MODEL_ARGS=(
    --num-layers 48
    --hidden-size 6144
    --num-attention-heads 48
    --group-query-attention
    --num-query-groups 8
    --seq-length 4096
    --max-position-embeddings 4096
    --swiglu
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 4
    --pipeline-model-parallel-size 4
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
)
torchrun --nproc_per_node 8 --nnodes 4 --rdzv_backend c10d --rdzv_endpoint head:29500 pretrain_gpt.py \\
    ${MODEL_ARGS[@]} ${PARALLEL_ARGS[@]} \\
    --micro-batch-size 1 --global-batch-size 256 --train-iters 50000 \\
    --lr 1.5e-4 --lr-decay-iters 50000 --lr-warmup-fraction .01 --bf16 \\
    --save /shared/ckpt --load /shared/ckpt --save-interval 500
"""

SWIFT = """\
NPROC_PER_NODE=8 \\
swift rlhf \\
    --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --train_type full \\
    --dataset questions.jsonl --reward_funcs accuracy format \\
    --torch_dtype bfloat16 --max_length 4096 --max_completion_length 2048 \\
    --num_generations 8 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 \\
    --use_vllm true --vllm_mode colocate --deepspeed zero3 \\
    --add_version false --resume_from_checkpoint out/checkpoint-100 --output_dir out
"""

SKY = """\
name: finetune
num_nodes: 2
resources:
  accelerators: H100:8
  use_spot: true
  disk_size: 1024
file_mounts:
  /outputs:
    name: my-checkpoints
    mode: MOUNT_CACHED
envs:
  RUN: first
setup: pip install -r requirements.txt
run: |
  HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nproc_per_node 8 --nnodes $SKYPILOT_NUM_NODES --node_rank $SKYPILOT_NODE_RANK \\
    --master_addr $HEAD --master_port 29500 finetune.py --output_dir /outputs/$RUN
"""

TORCHRUN = """\
#!/bin/bash
torchrun --nnodes 2 --nproc_per_node 8 --rdzv_id 7 --rdzv_backend c10d --rdzv_endpoint $HEAD_NODE:29500 train.py
"""

DEEPSPEED = """\
#!/bin/bash
deepspeed --include localhost:0,1,2,3 --master_port 29600 train.py --deepspeed --deepspeed_config ds.json
"""

VLLM = """\
#!/bin/bash
vllm serve meta-llama/Llama-3.1-8B-Instruct --port 8000 --tensor-parallel-size 2 --max-model-len 32768 --dtype bfloat16
"""

BASES = {
    "torchtitan.toml": TORCHTITAN,
    "torchtune.yaml": TORCHTUNE,
    "verl.sh": VERL,
    "openrlhf.sh": OPENRLHF,
    "megatron.sh": MEGATRON,
    "swift.sh": SWIFT,
    "sky.yaml": SKY,
    "torchrun.sh": TORCHRUN,
    "deepspeed.sh": DEEPSPEED,
    "vllm.sh": VLLM,
}


class Pair(NamedTuple):
    """A place in a base, the text that makes the fault there, and that of its twin. `code`: the rule that finds it."""

    what: str
    base: str
    place: str
    fault: str
    twin: str
    code: str


PAIRS = (
    Pair(
        "a length that eight ranks cannot share",
        "torchtitan.toml",
        "seq_len = 8192",
        "seq_len = 8100",
        "seq_len = 4096",
        "TTI003",
    ),
    Pair(
        "checkpoints off in a long run", "torchtitan.toml", "enable = true", "enable = false", "enable = true", "TTI004"
    ),
    Pair(
        "asynchronous tensor parallelism without a compiler",
        "torchtitan.toml",
        "[checkpoint]",
        "enable_async_tensor_parallel = true\n\n[checkpoint]",
        "enable_async_tensor_parallel = true\n\n[compile]\nenable = true\n\n[checkpoint]",
        "TTI006",
    ),
    Pair(
        "fewer microbatches than stages",
        "torchtitan.toml",
        "pipeline_parallel_degree = 1",
        "pipeline_parallel_degree = 16",
        "pipeline_parallel_degree = 4",
        "TTI008",
    ),
    Pair(
        "one checkpoint kept",
        "torchtitan.toml",
        "interval = 500",
        "interval = 500\nkeep_latest_k = 1",
        "interval = 500\nkeep_latest_k = 3",
        "TTI014",
    ),
    Pair(
        "the first checkpoint after the end",
        "torchtitan.toml",
        "interval = 500",
        "interval = 50000",
        "interval = 1000",
        "TTI015",
    ),
    Pair(
        "packed rows without a length", "torchtune.yaml", "  max_seq_len: 8192\n", "", "  max_seq_len: 2048\n", "TTU001"
    ),
    Pair(
        "accumulation with steps in the backward pass",
        "torchtune.yaml",
        "compile: False",
        "compile: False\noptimizer_in_bwd: True",
        "compile: True",
        "TTU002",
    ),
    Pair(
        "offloading without checkpointing",
        "torchtune.yaml",
        "enable_activation_checkpointing: True\nenable_activation_offloading: False",
        "enable_activation_checkpointing: False\nenable_activation_offloading: True",
        "enable_activation_checkpointing: True\nenable_activation_offloading: True",
        "TTU005",
    ),
    Pair("training in fp16", "torchtune.yaml", "dtype: bf16", "dtype: fp16", "dtype: fp32", "TTU006"),
    Pair(
        "tensor parallelism without a plan",
        "torchtune.yaml",
        "compile: False",
        "compile: False\ntensor_parallel_dim: 4",
        "compile: False\ntensor_parallel_dim: 1",
        "TTU014",
    ),
    Pair(
        "a batch below its mini-batch",
        "verl.sh",
        "ppo_mini_batch_size=128",
        "ppo_mini_batch_size=1024",
        "ppo_mini_batch_size=512",
        "VRL001",
    ),
    Pair(
        "a batch that 32 GPUs cannot share",
        "verl.sh",
        "data.train_batch_size=512",
        "data.train_batch_size=510",
        "data.train_batch_size=256",
        "VRL002",
    ),
    Pair(
        "a micro-batch that does not divide",
        "verl.sh",
        "ppo_micro_batch_size_per_gpu=2",
        "ppo_micro_batch_size_per_gpu=3",
        "ppo_micro_batch_size_per_gpu=4",
        "VRL003",
    ),
    Pair(
        "a reference model without a micro-batch",
        "verl.sh",
        "trainer.save_freq=10",
        "actor_rollout_ref.actor.use_kl_loss=True trainer.save_freq=10",
        "actor_rollout_ref.actor.use_kl_loss=False trainer.save_freq=10",
        "VRL015",
    ),
    Pair(
        "prefill below a sequence",
        "verl.sh",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.enable_chunked_prefill=False",
        "actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.enable_chunked_prefill=True",
        "VRL006",
    ),
    Pair(
        "a comment that cuts the overrides",
        "verl.sh",
        "    trainer.save_freq=10 \\\n",
        "    # keep ten\n    trainer.save_freq=10 \\\n",
        "    trainer.save_freq=20 \\\n",
        "SHL001",
    ),
    Pair("GRPO with one response", "verl.sh", "rollout.n=8", "rollout.n=1", "rollout.n=16", "VRL010"),
    Pair(
        "engines that do not fill the GPUs",
        "openrlhf.sh",
        "--zero_stage 3",
        "--zero_stage 3 --colocate_all_models --vllm_enable_sleep --vllm_num_engines 8",
        "--zero_stage 3 --colocate_all_models --vllm_enable_sleep",
        "ORH002",
    ),
    Pair(
        "rloo with one sample",
        "openrlhf.sh",
        "--n_samples_per_prompt 4",
        "--n_samples_per_prompt 1",
        "--n_samples_per_prompt 8",
        "ORH005",
    ),
    Pair(
        "a batch that does not divide",
        "openrlhf.sh",
        "--train_batch_size 256",
        "--train_batch_size 200",
        "--train_batch_size 128",
        "ORH001",
    ),
    Pair(
        "a model that 64 ranks would need",
        "megatron.sh",
        "--pipeline-model-parallel-size 4",
        "--pipeline-model-parallel-size 16",
        "--pipeline-model-parallel-size 8",
        "MCO001",
    ),
    Pair("layers that do not divide", "megatron.sh", "--num-layers 48", "--num-layers 50", "--num-layers 40", "MCO002"),
    Pair(
        "a gather that is overlapped alone",
        "megatron.sh",
        "    --overlap-grad-reduce\n",
        "    --overlap-param-gather\n",
        "    --overlap-grad-reduce\n    --overlap-param-gather\n",
        "MCO007",
    ),
    Pair(
        "a warm-up in samples",
        "megatron.sh",
        "--lr-warmup-fraction .01",
        "--lr-warmup-samples 2000",
        "--lr-warmup-iters 500",
        "MCO008",
    ),
    Pair(
        "a batch that two replicas cannot share",
        "megatron.sh",
        "--global-batch-size 256",
        "--global-batch-size 255",
        "--global-batch-size 128",
        "MCO011",
    ),
    Pair(
        "groups that do not divide",
        "swift.sh",
        "--num_generations 8",
        "--num_generations 7",
        "--num_generations 16",
        "SWI015",
    ),
    Pair(
        "FSDP beside DeepSpeed",
        "swift.sh",
        "--deepspeed zero3",
        "--deepspeed zero3 --fsdp fsdp2",
        "--deepspeed zero2",
        "SWI007",
    ),
    Pair(
        "a spot job that keeps nothing", "sky.yaml", "mode: MOUNT_CACHED", "mode: COPY", "mode: MOUNT_CACHED", "SKT004"
    ),
    Pair("a folder that does not exist", "sky.yaml", "setup:", "workdir: ./no-such-code\nsetup:", "setup:", "SKT001"),
    Pair(
        "a setup that asks for its rank",
        "sky.yaml",
        "setup: pip install -r requirements.txt",
        "setup: echo $SKYPILOT_NODE_RANK",
        "setup: echo $SKYPILOT_SETUP_NODE_RANK",
        "SKT003",
    ),
    Pair(
        "a rendezvous on loopback",
        "torchrun.sh",
        "--rdzv_endpoint $HEAD_NODE:29500",
        "--rdzv_endpoint 127.0.0.1:29500",
        "--rdzv_endpoint $HEAD_NODE:29400",
        "TRU004",
    ),
    Pair("two nodes that stand alone", "torchrun.sh", "--rdzv_id 7", "--standalone", "--rdzv_id 8", "TRU002"),
    Pair(
        "GPUs counted and named", "deepspeed.sh", "--master_port 29600", "--num_gpus 4", "--master_port 29601", "DSL002"
    ),
    Pair(
        "tools without a parser",
        "vllm.sh",
        "--dtype bfloat16",
        "--enable-auto-tool-choice",
        "--enable-auto-tool-choice --tool-call-parser llama3_json",
        "VLS009",
    ),
)
