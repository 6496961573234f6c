"""Configs as prime-rl had them between its generations: each kind of file at a date, with one thing more at a time.

A date stands for what prime-rl read then. Where no table has that form, a file cannot be without errors.
"""

from __future__ import annotations

from typing import NamedTuple


class DatedText(NamedTuple):
    """`accepts`: the generations that take the text without an error, oldest first; () if none does."""

    date: str
    name: str
    accepts: tuple[str, ...]
    text: str


class _Kind(NamedTuple):
    """A file at a date, and what is added to it: (text, the generations that take the whole)."""

    date: str
    name: str
    base: str
    added: tuple[tuple[str, tuple[str, ...]], ...]


_JANUARY, _MAY, _AUGUST = ("2026-01",), ("2026-05",), ("2026-08",)
_TO_MAY, _ALL = _JANUARY + _MAY, _JANUARY + _MAY + _AUGUST

_KINDS = (
    # GPUs by their numbers, environments and sampling directly below the orchestrator
    _Kind(
        "2026-02-03",
        "rl.toml",
        """\
max_steps = 40
seq_len = 2048
trainer_gpu_ids = [1]
inference_gpu_ids = [0]
[model]
name = "Qwen/Qwen3-1.7B"
[trainer.optim]
lr = 2e-6
[orchestrator]
batch_size = 64
rollouts_per_example = 8
[orchestrator.sampling]
max_tokens = 512
[[orchestrator.env]]
id = "word-count"
[inference.model]
max_model_len = 4096
""",
        (
            ("", _JANUARY),
            ("[ckpt]\ninterval = 20\nresume_step = 20\n", _JANUARY),
            ("[wandb]\nproject = 'words'\nname = 'words-1b'\n", _JANUARY),
            ("[orchestrator.val]\ninterval = 1\nnum_examples = 16\n", _JANUARY),
            ("[orchestrator.buffer]\nonline_difficulty_filtering = true\n", _JANUARY),
            ("[trainer.model]\noptim_cpu_offload = true\n", ()),  # four days younger than the table
        ),
    ),
    # counts of GPUs, and still the older places of environments and sampling
    _Kind(
        "2026-02-24",
        "rl.toml",
        """\
max_steps = 40
seq_len = 2048
[model]
name = "Qwen/Qwen3-1.7B"
[deployment]
num_train_gpus = 2
num_infer_gpus = 2
[trainer.optim]
lr = 2e-6
[orchestrator]
batch_size = 64
rollouts_per_example = 8
[orchestrator.sampling]
max_tokens = 512
[[orchestrator.env]]
id = "word-count"
[inference.parallel]
dp = 2
""",
        (
            ("", _MAY),
            ("[ckpt]\ninterval = 20\nresume_step = -1\n", _MAY),
            ("[wandb]\nproject = 'words'\n", _MAY),
            ("[trainer.model]\noptim_cpu_offload = true\n", _MAY),
            ("[slurm]\njob_name = 'words'\n", _MAY),
            ("[orchestrator.val]\ninterval = 1\n", ()),
        ),
    ),
    # an orchestrator of its own
    _Kind(
        "2026-03-02",
        "orch.toml",
        """\
max_steps = 20
seq_len = 2048
batch_size = 64
rollouts_per_example = 8
[model]
name = "Qwen/Qwen3-1.7B"
[sampling]
max_tokens = 512
[[env]]
id = "word-count"
""",
        (
            ("", _TO_MAY),
            ("[ckpt]\ninterval = 5\n", _TO_MAY),
            ("[client]\nbase_url = ['http://localhost:8000/v1']\n", _TO_MAY),
            ("[log]\nlevel = 'debug'\n", _TO_MAY),
            ("[val]\ninterval = 1\nnum_examples = 16\n", _JANUARY),
            ("[[filters]]\ntype = 'gibberish'\n", _MAY),
        ),
    ),
    # a trainer of its own: its keys have changed little
    _Kind(
        "2026-03-15",
        "train.toml",
        """\
max_steps = 20
[model]
name = "Qwen/Qwen3-1.7B"
[optim]
lr = 3e-6
""",
        (
            ("", _ALL),
            ("[ckpt]\ninterval = 10\n", _ALL),
            ("[ckpt]\ninterval = 10\nresume_step = 10\n", _TO_MAY),
            ("[wandb]\nproject = 'words'\n", _TO_MAY),
            ("[weight_broadcast]\ntype = 'nccl'\n", _ALL),
            ("[model.ac]\nfreq = 1\n[model.compile]\n", _ALL),
        ),
    ),
    # supervised fine-tuning
    _Kind(
        "2026-03-28",
        "sft.toml",
        """\
max_steps = 100
[model]
name = "Qwen/Qwen3-1.7B"
[data]
name = "example/words"
seq_len = 1024
batch_size = 16
""",
        (
            ("", _ALL),
            ("[ckpt]\ninterval = 50\n", _ALL),
            ("[wandb]\nproject = 'words'\n", _TO_MAY),
            ("[deployment]\nnum_gpus = 8\n", _MAY),
            ("[slurm]\njob_name = 'words-sft'\n", _MAY + _AUGUST),
            ("[model.lora]\nrank = 16\n", _ALL),
        ),
    ),
    # environments and sampling below orchestrator.train
    _Kind(
        "2026-04-20",
        "rl.toml",
        """\
max_steps = 40
seq_len = 2048
[model]
name = "Qwen/Qwen3-1.7B"
[trainer]
[orchestrator]
batch_size = 64
rollouts_per_example = 8
[orchestrator.train.sampling]
max_completion_tokens = 512
[[orchestrator.train.env]]
id = "word-count"
[inference.model]
max_model_len = 4096
""",
        (
            ("", _MAY),
            ("[wandb]\nproject = 'words'\n", _MAY),
            ("[deployment]\nnum_train_gpus = 4\nnum_infer_gpus = 4\n", _MAY),
            ("[orchestrator.eval]\ninterval = 20\n[[orchestrator.eval.env]]\nid = 'word-count'\n", _MAY),
            ("[orchestrator.buffer]\neasy_threshold = 1.0\nhard_threshold = 0.0\n", _MAY),
            ("[weight_broadcast]\ntype = 'nccl'\n", _MAY),
        ),
    ),
    # an inference server of its own
    _Kind(
        "2026-05-12",
        "infer.toml",
        """\
[model]
name = "Qwen/Qwen3-1.7B"
max_model_len = 4096
[parallel]
tp = 2
""",
        (
            ("", _TO_MAY),
            ("[server]\nport = 8001\n", _TO_MAY),
            ("[weight_broadcast]\ntype = 'nccl'\n", _TO_MAY),
            ("[deployment]\ntype = 'multi_node'\nnum_nodes = 2\n[slurm]\njob_name = 'serve'\n", _MAY),
            ("[slurm]\njob_name = 'serve'\n", _MAY),
            ("[vllm]\nmax_num_seqs = 64\n", ()),
        ),
    ),
    # tasksets and harnesses below train.env: no table has them there
    _Kind(
        "2026-07-02",
        "rl.toml",
        """\
max_steps = 40
seq_len = 2048
[model]
name = "Qwen/Qwen3-1.7B"
[orchestrator]
batch_size = 64
group_size = 8
[orchestrator.train.sampling]
max_completion_tokens = 512
[[orchestrator.train.env]]
name = "words"
taskset = {id = "word-count"}
harness = {id = "null", runtime = {type = "subprocess"}}
[trainer]
[inference.parallel]
dp = 2
""",
        (
            ("", ()),
            ("[wandb]\nproject = 'words'\n", ()),
            ("[orchestrator.algo]\ntype = 'max_rl'\n", ()),
            ("[env_vars]\nNCCL_DEBUG = 'INFO'\n", ()),
            ("[orchestrator.renderer]\nname = 'prime-qwen3'\n", ()),
            ("[trainer.ckpt.weights]\nsave_adapter_separately = true\n", ()),
        ),
    ),
    # sources, and the older places of the monitors and of the server's keys
    _Kind(
        "2026-08-05",
        "rl.toml",
        """\
max_steps = 40
seq_len = 2048
[model]
name = "Qwen/Qwen3-1.7B"
[trainer]
[orchestrator]
batch_size = 64
group_size = 8
[[orchestrator.train.source]]
name = "words"
env.taskset.id = "word-count"
[inference]
""",
        (
            ("", _AUGUST),
            ("[wandb]\nproject = 'words'\n", ()),
            ("[inference.parallel]\ndp = 2\n", ()),
            ("[ckpt]\ninterval = 20\nresume_step = 20\n", ()),
            ("[orchestrator.algo]\ntype = 'max_rl'\n", _AUGUST),
            ("[orchestrator.concurrency]\nmax_inflight = 64\n", _AUGUST),
        ),
    ),
    # the last days before the newest table
    _Kind(
        "2026-08-19",
        "rl.toml",
        """\
max_steps = 40
seq_len = 2048
[run]
name = "words"
[model]
name = "Qwen/Qwen3-1.7B"
[trainer]
[orchestrator]
batch_size = 64
group_size = 8
[[orchestrator.train.source]]
name = "words"
env.taskset.id = "word-count"
[inference.vllm]
max_model_len = 4096
""",
        (
            ("", _AUGUST),
            ("[monitors.wandb]\nproject = 'words'\n", _AUGUST),
            ("[resume]\nstep = 20\n", _AUGUST),
            ("[trainer.model.lora]\nrank = 16\n", _AUGUST),
            (
                "[orchestrator.eval]\ninterval = 20\n[[orchestrator.eval.source]]\nname = 'w'\nenv.taskset.id = 'w'\n",
                _AUGUST,
            ),
            ("[slurm]\njob_name = 'words'\n", _AUGUST),
        ),
    ),
)

DATED_TEXTS = tuple(
    DatedText(kind.date, kind.name, accepts, kind.base + added) for kind in _KINDS for added, accepts in kind.added
)
