"""Drafts the file of prime-rl's `rl` or `sft` in each generation, without the sizes to choose. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from prime_train.choose.bundled import choose_rate, first_length
from prime_train.choose.draft import Draft, Setting
from prime_train.choose.wishes import Concession, Wishes
from prime_train.choose.workload import Workload
from prime_train.config import detect
from prime_train.config.parsed_config import Reading
from prime_train.estimate.candidate_changes import Assignments

SHARES_A_GPU = (
    "2026-01"  # later generations give each GPU to one role, start several processes for `sft`, and use Slurm
)
_RANK = 16
_CHUNK_TOKENS = 1024
_WHOLE_LOGITS = ("sft", "2026-05")  # its chunked loss is for rollouts alone: registry/prime_rl_validators/
_CHATS = 64
_FEW = (32, 8)  # rollouts of a step and of a task where trainer and server share a GPU
_BEGINNING = '[prime_train]\nprime_rl = "{}"\n[model]\nname = "x/y"\n[ckpt]\n'
_PARTS = {"rl": "[orchestrator]\n[trainer]\n[inference]\n", "sft": '[data]\nname = "x/y"\n'}


@cache
def _read_keys(generation: str, task: str) -> Reading:
    return detect.read(_BEGINNING.format(generation) + _PARTS[task], f"{task}.toml")


def draft_prime_rl(wishes: Wishes, level: Concession, generation: str) -> Draft:
    """The settings of an `rl` or `sft` run of this generation. Steps and intervals are placeholders."""
    keys = _read_keys(generation, wishes.task)
    settings = _rl_settings(wishes, level, keys) if wishes.task == "rl" else _sft_settings(wishes, level, keys)
    return Draft((*settings, *_shared_settings(wishes, level, keys)), keys.key)


def _shared_settings(wishes: Wishes, level: Concession, keys: Reading) -> Iterator[Setting]:
    """The learning rate, the adapter, checkpoints, and the job that starts several machines."""

    def setting(field: str, value: object, why: str = "") -> Setting:
        return Setting(keys.key(field), value, why, field)

    rate, why = choose_rate(wishes, level)
    yield setting("optim.lr", rate, why)
    if level.adapter:
        yield setting("lora.rank", _RANK, "an adapter, because it fits where all weights do not")
        if wishes.task == "rl":
            yield Setting("orchestrator.model.lora.name", f"{wishes.name}-r{_RANK}", "its name at the server")
        yield setting("trainer.optimization_dtype", "bfloat16", "the weights that stay as they are need no more bits")
        yield setting("trainer.reduce_dtype", "bfloat16", "as the weights")
    if keys.has("trainer.head_chunk_tokens") and (wishes.task, keys.generation) != _WHOLE_LOGITS:
        yield setting("trainer.head_chunk_tokens", _CHUNK_TOKENS, "logits of so many tokens at once save gigabytes")
    if wishes.task == "rl":
        yield setting("inference.ctx_tokens", level.ctx_tokens, "that of the training")
    yield setting("checkpoint.interval_steps", 100)
    yield setting("saving.keep_last", 2)
    if keys.has("run.name"):
        yield setting("run.name", wishes.name)
    if wishes.place.machines > 1:
        yield Setting("slurm.job_name", wishes.name, "prime-rl starts several machines by Slurm alone")


def _sft_settings(wishes: Wishes, level: Concession, keys: Reading) -> Iterator[Setting]:
    data = wishes.data
    assert data is not None

    def setting(field: str, value: object, why: str = "") -> Setting:
        return Setting(keys.key(field), value, why, field)

    yield setting("run.max_steps", 1000)
    yield Setting("prime_train.prime_rl", keys.generation, "the generation that this file is for")
    yield Setting("model.name", wishes.model)
    yield setting("finetune.data_name", data.path, "a dataset of the hub, or a folder, with messages")
    if data.subset:
        yield setting("finetune.subsets", [data.subset])
    short = level.ctx_tokens < first_length(wishes)
    yield setting(
        "finetune.ctx_tokens", level.ctx_tokens, "the longest that fits" if short else "tokens of a packed row"
    )
    gpus = wishes.place.hardware.gpus
    batch = -(-_CHATS // gpus) * gpus
    yield setting("finetune.batch_sequences", batch, "packed rows of a step; the size that published runs use")
    yield setting("finetune.micro_batch_sequences", 1)


def _rl_settings(wishes: Wishes, level: Concession, keys: Reading) -> Iterator[Setting]:
    assert wishes.workload is not None
    work, generation = wishes.workload, keys.generation

    def setting(field: str, value: object, why: str = "") -> Setting:
        return Setting(keys.key(field), value, why, field)

    yield setting("run.max_steps", 1000)
    short = level.ctx_tokens < first_length(wishes)
    yield Setting(
        "seq_len", level.ctx_tokens, "the longest that fits" if short else f"prompt and answers: {work.words}"
    )
    yield Setting("prime_train.prime_rl", generation, "the generation that this file is for")
    if work.prompt_tokens:
        yield Setting("prime_train.expected_prompt_tokens", work.prompt_tokens, "of this environment")
    yield Setting("model.name", wishes.model)
    shares = wishes.place.hardware.gpus == 1
    rollouts, group = _FEW if shares else (work.rollouts, work.group_size)
    yield setting("rollout.batch_rollouts", rollouts, "rollouts of a step")
    yield setting("rollout.group_size", group, "rollouts of a task, which are compared with each other")
    yield setting("rollout.max_completion_tokens", work.limit_answer(level.ctx_tokens), "of one answer")
    yield setting("rollout.max_inflight", min(2 * rollouts, max(rollouts, work.concurrency)), "rollouts at once")
    yield from _environment(work, generation)


def _environment(work: Workload, generation: str) -> Iterator[Setting]:
    """The table of the environment, which each generation spells differently."""
    if generation == "2026-08":
        source = "orchestrator.train.source"
        yield Setting(f"[[{source}]].name", work.id or work.kind, work.words)
        yield Setting(f"{source}.env.taskset.id", work.id or work.kind)
        yield Setting(f"{source}.env.agent.harness.id", "null")
        yield Setting(f"{source}.env.agent.runtime.type", "subprocess")
    else:
        table = "orchestrator.env" if generation == "2026-01" else "orchestrator.train.env"
        yield Setting(f"[[{table}]].id", work.id or work.kind, work.words)


def list_prime_rl_layouts(wishes: Wishes, generation: str) -> Iterator[Assignments]:
    """Every way to spread the run over the GPUs, with or without computing activations again."""
    spread = list(_spread_sft(wishes, generation) if wishes.task == "sft" else _spread_rl(wishes, generation))
    for recompute in (False, True):
        again: Assignments = (("trainer.activation_checkpointing", True),) if recompute else ()
        yield from ((*layout, *again) for layout in spread)


def _spread_sft(wishes: Wishes, generation: str) -> Iterator[Assignments]:
    gpus, machines = wishes.place.hardware.gpus, wishes.place.machines
    if generation == SHARES_A_GPU:  # its `sft` is one process
        yield from [()] if gpus == 1 else []
    elif machines > 1:
        yield (*_several(gpus // machines), ("deployment.train_nodes", machines))
    else:
        yield (("deployment.train_gpus", gpus),)


def _spread_rl(wishes: Wishes, generation: str) -> Iterator[Assignments]:
    gpus, machines = wishes.place.hardware.gpus, wishes.place.machines
    heads, zero = wishes.shape.heads, (0,)
    if gpus == 1 and generation == SHARES_A_GPU:
        yield (("deployment.train_gpu_ids", zero), ("deployment.infer_gpu_ids", zero))
    each = gpus // machines
    # Roles share no machine where there are several.
    for served in range(1, machines) if machines > 1 else range(1, gpus):
        serving = each if machines > 1 else served
        for tensor in (count for count in (1, 2, 4, 8) if serving % count == 0 and heads % count == 0):
            if machines > 1:
                nodes = (("deployment.train_nodes", machines - served), ("deployment.infer_nodes", served))
                yield (*_several(each), *nodes, *_server(serving, tensor))
            else:
                yield (*_split(gpus, served, generation), *_server(served, tensor))


def _several(gpus: int) -> Assignments:
    return (("deployment.kind", "multi_node"), ("deployment.gpus_per_node", gpus))


def _split(gpus: int, served: int, generation: str) -> Assignments:
    if generation == SHARES_A_GPU:
        return (
            ("deployment.train_gpu_ids", tuple(range(served, gpus))),
            ("deployment.infer_gpu_ids", tuple(range(served))),
        )
    return (("deployment.train_gpus", gpus - served), ("deployment.infer_gpus", served))


def _server(served: int, tensor: int) -> Assignments:
    return (("inference.data_parallel", served // tensor), ("inference.tensor_parallel", tensor))
