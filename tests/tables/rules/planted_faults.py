"""Faults of meaning, each beside a healthy twin: configs that prime-rl would take, of which one trains badly.

A pair is a base, the keys that make the fault, and the keys that its twin has in their place. A value of None removes
the key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

AUGUST = """\
max_steps = 200
seq_len = 4096

[run]
name = "planted"

[model]
name = "Qwen/Qwen3-4B"

[ckpt]
interval = 50
keep_last = 2

[deployment]
num_train_gpus = 4
num_infer_gpus = 4

[trainer]

[orchestrator]
batch_size = 256
group_size = 16

[orchestrator.renderer]
name = "qwen3"

[orchestrator.train.sampling]
max_completion_tokens = 1024

[[orchestrator.train.source]]
name = "words"

[orchestrator.train.source.env.taskset]
id = "words"

[orchestrator.train.source.env.agent.harness]
id = "null"

[orchestrator.train.source.env.agent.runtime]
type = "subprocess"

[inference.vllm]
max_model_len = 4096
data_parallel_size = 4
"""

MAY = """\
max_steps = 200
seq_len = 4096

[model]
name = "Qwen/Qwen3-4B"

[ckpt]
interval = 50
keep_last = 2

[deployment]
num_train_gpus = 4
num_infer_gpus = 4

[trainer]

[orchestrator]
batch_size = 256
group_size = 16

[orchestrator.train.sampling]
max_completion_tokens = 1024

[[orchestrator.train.env]]
id = "words"

[inference.model]
max_model_len = 4096

[inference.parallel]
dp = 4
"""

JANUARY = """\
max_steps = 200
seq_len = 4096
trainer_gpu_ids = [4, 5, 6, 7]
inference_gpu_ids = [0, 1, 2, 3]

[model]
name = "Qwen/Qwen3-4B"

[ckpt]
interval = 50
keep_last = 2

[trainer]

[orchestrator]
batch_size = 256
rollouts_per_example = 16

[orchestrator.sampling]
max_tokens = 1024

[[orchestrator.env]]
id = "words"

[inference.model]
max_model_len = 4096

[inference.parallel]
dp = 4
"""

SFT_AUGUST = """\
max_steps = 200

[run]
name = "planted-sft"

[model]
name = "Qwen/Qwen3-4B"

[ckpt]
interval = 50
keep_last = 2

[deployment]
num_train_gpus = 4

[data]
name = "example/chats"
seq_len = 4096
batch_size = 32

[optim]
lr = 2e-5
"""

SFT_MAY = SFT_AUGUST.replace('[run]\nname = "planted-sft"\n\n', "").replace("num_train_gpus", "num_gpus")
SFT_JANUARY = SFT_MAY.replace("[deployment]\nnum_gpus = 4\n\n", "")

BASES = {
    "august": (AUGUST, "rl.toml", "2026-08"),
    "may": (MAY, "rl.toml", "2026-05"),
    "january": (JANUARY, "rl.toml", "2026-01"),
    "sft august": (SFT_AUGUST, "sft.toml", "2026-08"),
    "sft may": (SFT_MAY, "sft.toml", "2026-05"),
    "sft january": (SFT_JANUARY, "sft.toml", "2026-01"),
}

_EVAL = {"orchestrator.eval.source": [{"name": "held-out", "env": {"taskset": {"id": "held-out"}}}]}
_EVAL_MAY = {"orchestrator.eval.env": [{"id": "held-out"}]}
_OTHER, _SAME = "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B"
_AGENT = "orchestrator.train.source.0.env.agent"
_TASKSET = "orchestrator.train.source.0.env.taskset"


class Pair(NamedTuple):
    """One fault. `codes`: the rules of which one must find it."""

    what: str
    base: str
    fault: dict[str, Any]
    twin: dict[str, Any]
    codes: tuple[str, ...]


def _pair(what: str, base: str, fault: dict[str, Any], twin: dict[str, Any], *codes: str) -> Pair:
    return Pair(f"{what}, {base}", base, fault, twin, codes)


PAIRS = (
    # --- which model
    _pair("trainer's model", "august", {"trainer.model.name": _OTHER}, {"trainer.model.name": _SAME}, "MOD007"),
    _pair("served model", "august", {"inference.vllm.model": _OTHER}, {"inference.vllm.model": _SAME}, "MOD007"),
    _pair("asked model", "august", {"orchestrator.model.name": _OTHER}, {"orchestrator.model.name": _SAME}, "MOD007"),
    _pair("trainer alone", "august", {"model": None, "trainer.model.name": _SAME}, {}, "MOD007"),
    _pair(
        "another size",
        "august",
        {"inference.vllm.model": "Qwen/Qwen3-8B-FP8", "orchestrator.model.name": "Qwen/Qwen3-8B-FP8"},
        {"inference.vllm.model": _SAME, "orchestrator.model.name": _SAME},
        "MOD007",
    ),
    _pair("trainer's model", "may", {"trainer.model.name": _OTHER}, {"trainer.model.name": _SAME}, "MOD007"),
    _pair("served model", "may", {"inference.model.name": _OTHER}, {"inference.model.name": _SAME}, "MOD007"),
    _pair("asked model", "may", {"orchestrator.student.model.name": _OTHER}, {}, "MOD007"),
    _pair(
        "trainer alone",
        "january",
        {"model": None, "trainer.model.name": _SAME},
        {"trainer.model.name": _OTHER},
        "MOD007",
    ),
    # --- where tools run
    _pair(
        "remote sandbox",
        "august",
        {f"{_AGENT}": {"harness": {"id": "bash"}, "runtime": {"type": "prime"}}},
        {f"{_AGENT}": {"harness": {"id": "bash"}, "runtime": {"type": "docker"}}},
        "ENV002",
    ),
    _pair(
        "no runtime",
        "august",
        {f"{_AGENT}": {"harness": {"id": "bash"}}},
        {f"{_AGENT}": {"harness": {"id": "null"}}},
        "ENV003",
    ),
    _pair(
        "remote executor",
        "may",
        {"orchestrator.train.env.0.args": {"executor_backend": "prime"}},
        {"orchestrator.train.env.0.args": {"executor_backend": "local"}},
        "ENV002",
    ),
    _pair(
        "remote executor",
        "january",
        {"orchestrator.env.0.args": {"executor_backend": "prime"}},
        {"orchestrator.env.0.args": {"executor_backend": "local"}},
        "ENV002",
    ),
    _pair(
        "default sandbox",
        "january",
        {"orchestrator.env.0.args": {"sandbox_timeout_minutes": 10}},
        {"orchestrator.env.0.args": {"difficulty": 10}},
        "ENV002",
    ),
    # --- lengths
    _pair(
        "4000 of 4096 with tools",
        "august",
        {"orchestrator.train.sampling.max_completion_tokens": 4000, f"{_AGENT}.harness.id": "bash"},
        {"orchestrator.train.sampling.max_completion_tokens": 2000, f"{_AGENT}.harness.id": "bash"},
        "LEN001",
    ),
    _pair(
        "4000 of 4096 with tools",
        "may",
        {
            "orchestrator.train.sampling.max_completion_tokens": 4000,
            "orchestrator.train.env.0.args": {"executor_backend": "local"},
        },
        {"orchestrator.train.env.0.args": {"executor_backend": "local"}},
        "LEN001",
    ),
    _pair(
        "4000 of 4096 with tools",
        "january",
        {"orchestrator.sampling.max_tokens": 4000, "inference.model.enable_auto_tool_choice": True},
        {"inference.model.enable_auto_tool_choice": True},
        "LEN001",
    ),
    _pair("turns", "august", {f"{_TASKSET}.max_turns": 20}, {f"{_TASKSET}.max_turns": 3}, "LEN011"),
    _pair(
        "turns",
        "may",
        {"orchestrator.train.env.0.args": {"max_turns": 20}},
        {"orchestrator.train.env.0.args": {"max_turns": 3}},
        "LEN011",
    ),
    _pair(
        "turns",
        "january",
        {"orchestrator.env.0.args": {"max_turns": 20}},
        {"orchestrator.env.0.args": {"max_turns": 3}},
        "LEN011",
    ),
    _pair(
        "no completion limit",
        "august",
        {
            "model.name": "Qwen/Qwen3-4B-Instruct-2507",
            "orchestrator.train.sampling": None,
            "inference.vllm.max_model_len": 262144,
        },
        {"model.name": "Qwen/Qwen3-4B-Instruct-2507", "inference.vllm.max_model_len": 262144},
        "LEN012",
    ),
    _pair(
        "no completion limit, the model's context",
        "may",
        {"model.name": "Qwen/Qwen3-4B-Instruct-2507", "orchestrator.train.sampling": None, "inference.model": None},
        {"model.name": "Qwen/Qwen3-4B-Instruct-2507", "inference.model": None},
        "LEN012",
    ),
    _pair(
        "no completion limit",
        "january",
        {
            "model.name": "Qwen/Qwen3-4B-Instruct-2507",
            "orchestrator.sampling": None,
            "inference.model.max_model_len": 262144,
        },
        {"model.name": "Qwen/Qwen3-4B-Instruct-2507", "inference.model.max_model_len": 262144},
        "LEN012",
    ),
    _pair("default length", "sft august", {"data.seq_len": None}, {}, "LEN013"),
    _pair("default length", "sft may", {"data.seq_len": None}, {}, "LEN013"),
    _pair("default length", "sft january", {"data.seq_len": None}, {}, "LEN013"),
    _pair("no room for a prompt", "august", {"orchestrator.train.sampling.max_completion_tokens": 4096}, {}, "LEN001"),
    _pair(
        "trainer shorter than rollouts",
        "may",
        {"seq_len": None, "orchestrator.seq_len": 4096, "trainer.model.seq_len": 2048},
        {"seq_len": None, "orchestrator.seq_len": 4096, "trainer.model.seq_len": 8192},
        "LEN003",
    ),
    # --- batches
    _pair("batch and ranks", "sft august", {"data.batch_size": 30}, {"data.batch_size": 28}, "BAT017"),
    _pair("batch and ranks", "sft may", {"deployment.num_gpus": 6}, {"deployment.num_gpus": 8}, "BAT017"),
    _pair(
        "micro-batches and ranks", "sft august", {"data.micro_batch_size": 16}, {"data.micro_batch_size": 8}, "BAT017"
    ),
    _pair(
        "few in flight",
        "august",
        {"orchestrator.concurrency": {"min_inflight": 16, "initial_inflight": 16, "max_inflight": 16}},
        {"orchestrator.concurrency": {"min_inflight": 16, "initial_inflight": 64, "max_inflight": 256}},
        "BAT018",
    ),
    _pair(
        "few in flight",
        "may",
        {"orchestrator.max_inflight_rollouts": 16},
        {"orchestrator.max_inflight_rollouts": 256},
        "BAT018",
    ),
    _pair(
        "few in flight", "january", {"orchestrator.max_concurrent": 16}, {"orchestrator.max_concurrent": 256}, "BAT018"
    ),
    _pair(
        "fewer than a group",
        "may",
        {"orchestrator.max_inflight_rollouts": 4},
        {"orchestrator.max_inflight_rollouts": 512},
        "BAT009",
    ),
    _pair("few sequences", "august", {"inference.vllm.max_num_seqs": 2}, {"inference.vllm.max_num_seqs": 64}, "BAT019"),
    _pair("one sequence", "august", {"inference.vllm.max_num_seqs": 1}, {"inference.vllm.max_num_seqs": 128}, "BAT019"),
    _pair("group of one", "august", {"orchestrator.group_size": 1}, {"orchestrator.group_size": 8}, "BAT004"),
    # --- parsers
    _pair(
        "tool parser",
        "august",
        {"inference.vllm.tool_call_parser": "llama3_json"},
        {"inference.vllm.tool_call_parser": "hermes"},
        "INF004",
    ),
    _pair(
        "tool parser",
        "may",
        {"inference.model.tool_call_parser": "glm45"},
        {"inference.model.tool_call_parser": "hermes"},
        "INF004",
    ),
    _pair("tool parser", "january", {"inference.model.tool_call_parser": "mistral"}, {}, "INF004"),
    _pair(
        "reasoning parser",
        "august",
        {"inference.vllm.reasoning_parser": "glm45"},
        {"inference.vllm.reasoning_parser": "qwen3"},
        "INF004",
    ),
    _pair(
        "reasoning parser",
        "may",
        {"inference.model.reasoning_parser": "openai_gptoss"},
        {"inference.model.reasoning_parser": "deepseek_r1"},
        "INF004",
    ),
    _pair(
        "hermes for a coder",
        "january",
        {"model.name": "Qwen/Qwen3-Coder-30B-A3B-Instruct", "inference.model.enable_auto_tool_choice": True},
        {"inference.model.enable_auto_tool_choice": True},
        "INF004",
    ),
    # --- evaluation
    _pair(
        "all tasks at every step",
        "august",
        {**_EVAL, "orchestrator.eval.interval": 1, "orchestrator.eval.num_examples": -1},
        {**_EVAL, "orchestrator.eval.interval": 50, "orchestrator.eval.num_examples": -1},
        "EVA005",
    ),
    _pair(
        "all tasks at every step",
        "may",
        {**_EVAL_MAY, "orchestrator.eval.interval": 1},
        {**_EVAL_MAY, "orchestrator.eval.interval": 50},
        "EVA005",
    ),
    _pair(
        "all tasks at every step",
        "january",
        {**_EVAL_MAY, "orchestrator.eval.interval": 1},
        {**_EVAL_MAY, "orchestrator.eval.interval": 50},
        "EVA005",
    ),
    # --- debugging
    _pair("fake data", "august", {"trainer.data.fake.batch_size": 4}, {}, "DBG001"),
    _pair("fake data", "january", {"trainer.data.fake.batch_size": 4}, {}, "DBG001"),
    _pair("fake data", "sft august", {"data": {"type": "fake", "batch_size": 32, "seq_len": 4096}}, {}, "DBG001"),
    _pair(
        "two layers",
        "august",
        {"trainer.model.debug.num_layers": 2},
        {"trainer.model.debug.random_init": False},
        "DBG002",
    ),
    _pair("random weights", "sft may", {"model.debug.random_init": True}, {"model.debug.random_init": False}, "DBG002"),
    _pair("benchmark", "may", {"bench": True}, {"bench": False}, "DBG003"),
    _pair("eager", "august", {"inference.vllm.enforce_eager": True}, {"inference.vllm.enforce_eager": False}, "DBG004"),
    _pair("eager", "january", {"inference.model.enforce_eager": True}, {}, "DBG004"),
    # --- time and steps
    _pair(
        "five seconds",
        "may",
        {"orchestrator.student.client.timeout": 5},
        {"orchestrator.student.client.timeout": 1200},
        "NET009",
    ),
    _pair(
        "five seconds", "january", {"orchestrator.client.timeout": 5}, {"orchestrator.client.timeout": 1200}, "NET009"
    ),
    _pair("tokens as steps", "sft august", {"max_steps": 2_000_000_000}, {"max_steps": 20_000}, "SCH006"),
    _pair(
        "tokens of warm-up",
        "august",
        {"trainer.scheduler": {"type": "linear", "warmup_steps": 100_000_000}},
        {"trainer.scheduler": {"type": "linear", "warmup_steps": 10}},
        "SCH006",
        "SCH001",
    ),
    _pair("tokens as interval", "may", {"ckpt.interval": 500_000_000}, {"ckpt.interval": 20}, "SCH006", "CKP004"),
    # --- adapters
    _pair(
        "deprecated section",
        "january",
        {"trainer.model.experimental.lora": {"rank": 16, "alpha": 0}, "trainer.optim.lr": 1e-5},
        {"trainer.model.lora": {"rank": 16, "alpha": 32}, "trainer.optim.lr": 1e-5},
        "LOR006",
    ),
    _pair(
        "rank beyond the server",
        "may",
        {"trainer.model.lora.rank": 64, "trainer.optim.lr": 1e-5, "inference.max_lora_rank": 16},
        {"trainer.model.lora.rank": 16, "trainer.optim.lr": 1e-5, "inference.max_lora_rank": 16},
        "LOR003",
    ),
)
