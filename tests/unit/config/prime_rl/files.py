"""Small prime-rl configs, one per generation and root, that prime-rl of that generation takes."""

RL_2026_01 = """\
trainer_gpu_ids = [1, 2]
inference_gpu_ids = [0]
max_steps = 40
max_async_level = 2

[model]
name = "Qwen/Qwen3-1.7B"

[ckpt]
interval = 20
keep_last = 1

[wandb]
project = "words"
name = "words-1b"

[trainer.optim]
lr = 2e-6

[orchestrator]
batch_size = 64
rollouts_per_example = 8
seq_len = 2048

[orchestrator.sampling]
max_tokens = 512
temperature = 0.9

[[orchestrator.env]]
id = "word-count"

[inference.model]
max_model_len = 4096

[inference.parallel]
tp = 1
"""

RL_2026_05 = """\
max_steps = 40
seq_len = 2048

[model]
name = "Qwen/Qwen3-1.7B"

[deployment]
num_train_gpus = 2
num_infer_gpus = 1

[ckpt]
interval = 20
resume_step = -1

[wandb]
project = "words"

[trainer.scheduler]
type = "linear"
warmup_steps = 4
decay_steps = 10

[orchestrator]
batch_size = 64
group_size = 8

[orchestrator.student.model.lora]
name = "words"

[orchestrator.train.sampling]
max_completion_tokens = 512

[[orchestrator.train.env]]
id = "word-count"
args = { level = 2 }

[inference.model]
max_model_len = 4096
"""

RL_2026_08 = """\
max_steps = 40
seq_len = 2048

[run]
name = "words"

[model]
name = "Qwen/Qwen3-1.7B"

[deployment]
num_train_gpus = 2
num_infer_gpus = 1

[ckpt]
interval = 20

[monitors.wandb]
project = "words"

[trainer.model.lora]
rank = 16

[trainer.model]
compile = "None"

[orchestrator]
batch_size = 64
group_size = 8

[orchestrator.train.sampling]
max_completion_tokens = 512

[[orchestrator.train.source]]
name = "words"

[orchestrator.train.source.env.taskset]
id = "word-count"

[orchestrator.train.source.env.agent.runtime]
type = "subprocess"

[inference.vllm]
max_model_len = 4096
max_num_seqs = 64
"""

SFT_2026_08 = """\
max_steps = 100

[run]
name = "words-sft"

[model]
name = "Qwen/Qwen3-1.7B"

[data]
name = "example/words"
seq_len = 1024
batch_size = 16
micro_batch_size = 2
"""

TRAINER_2026_08 = """\
max_steps = 4

[model]
name = "Qwen/Qwen3-1.7B"
seq_len = 1024

[data.fake]
batch_size = 2
"""

INFERENCE_2026_05 = """\
gpu_memory_utilization = 0.8

[model]
name = "Qwen/Qwen3-1.7B"

[server]
port = 8001
"""

ENV_SERVER_2026_05 = """\
output_dir = "out"

[env]
id = "word-count"
"""

EVALS_2026_08 = """\
model = "Qwen/Qwen3-1.7B"

[eval.client]
base_url = "http://localhost:8000/v1"

[[eval.source]]
name = "words"

[eval.source.env.taskset]
id = "word-count"
"""

OVERLAY_2026_08 = """\
[deployment]
gpus_per_node = 4

[orchestrator]
group_size = 16

[slurm]
job_name = "words"
"""

FILES = {
    ("2026-01", "rl"): RL_2026_01,
    ("2026-05", "rl"): RL_2026_05,
    ("2026-08", "rl"): RL_2026_08,
    ("2026-08", "sft"): SFT_2026_08,
    ("2026-08", "trainer"): TRAINER_2026_08,
    ("2026-05", "inference"): INFERENCE_2026_05,
    ("2026-05", "env-server"): ENV_SERVER_2026_05,
    ("2026-08", "evals"): EVALS_2026_08,
}
