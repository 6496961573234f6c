"""Drafts the run.toml of the bundled trainer. Sizes that the estimator chooses are not in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.choose.draft import Draft, Setting
from prime_train.choose.wishes import ChosenData, Concession, Wishes
from prime_train.choose.workload import Workload
from prime_train.estimate.candidate_changes import Assignments

_BATCH_TOKENS = 2**19  # of a pretraining step: GPT-3's smaller models, arXiv 2005.14165, table 2.1
_BATCH_CHATS = 64
# Parameters up to which a rate holds, and the rate: GPT-3, arXiv 2005.14165, table 2.1.
_PRETRAIN_RATES = ((0.3e9, 6e-4), (0.5e9, 3e-4), (1e9, 2.5e-4), (2e9, 2e-4), (4e9, 1.6e-4), (8e9, 1.2e-4), (99e9, 1e-4))
_LARGEST_RATE = 6e-5
_RATES = {("sft", False): 1e-5, ("sft", True): 1e-4, ("rl", False): 1e-6, ("rl", True): 1e-5}
_BF16_CAPABILITY = (8, 0)  # Ampere. Source: NVIDIA CUDA programming guide, compute capabilities
_RANK = 16  # QLoRA, arXiv 2305.14314, s. 4: the rank hardly matters if every linear layer has an adapter


def draft_bundled(wishes: Wishes, level: Concession) -> Draft:
    """The settings of a run of the bundled trainer. Steps, batches and intervals are placeholders."""
    return Draft((*_model(wishes, level), *_data(wishes, level), *_learning(wishes, level), *_rest(wishes)))


def global_batch(wishes: Wishes, ctx_tokens: int) -> int:
    """Sequences of an optimizer step: a multiple of the GPUs."""
    if wishes.workload is not None and wishes.task == "rl":
        return wishes.workload.rollouts
    wanted = _BATCH_CHATS if wishes.task == "sft" else max(1, _BATCH_TOKENS // ctx_tokens)
    gpus = wishes.place.hardware.gpus
    return -(-wanted // gpus) * gpus


def _model(wishes: Wishes, level: Concession) -> Iterator[Setting]:
    yield Setting("run.name", wishes.name)
    yield Setting("run.kind", wishes.task)
    yield Setting("run.max_steps", 1000)
    yield Setting("model.path", wishes.model)
    if wishes.task == "pretrain":
        why = 'only the sizes of the folder are used; "weights" goes on from its weights, with a tenth of the rate'
        yield Setting("model.init", "random", why)
    if level.adapter:
        yield Setting("model.lora.rank", _RANK, _explain_adapter(wishes))
    if wishes.task == "pretrain":
        yield Setting("model.compile", True, "takes minutes at the start, then every step is faster")
    yield Setting("tokenizer.path", wishes.model)


def _explain_adapter(wishes: Wishes) -> str:
    if wishes.adapter:
        return "an adapter, as asked for; without this table all weights are trained"
    return "an adapter, because training all weights does not fit on these GPUs; more of them would allow it"


def _data(wishes: Wishes, level: Concession) -> Iterator[Setting]:
    yield Setting("data.ctx_tokens", level.ctx_tokens, _explain_length(wishes, level))
    if wishes.task == "rl" or (wishes.data is not None and wishes.data.kind == "demonstrations"):
        assert wishes.workload is not None
        yield from _tasks(wishes.workload)
    if wishes.task != "rl":
        assert wishes.data is not None
        yield from _source(wishes.data, wishes.task == "sft")


def _explain_length(wishes: Wishes, level: Concession) -> str:
    if wishes.ctx_tokens is not None:
        return "as asked for"
    if level.ctx_tokens < first_length(wishes):
        return f"the longest that fits; {first_length(wishes)} was wanted, which takes more memory"
    if wishes.workload is not None:
        work = wishes.workload
        prompt = f"{work.prompt_tokens}" if work.prompt_tokens else "512, which is assumed,"
        return f"a prompt of {prompt} and the answers of {work.words}; longer answers need more"
    if wishes.data is not None and wishes.data.longest_tokens is not None:
        return f"the longest of the first records has {wishes.data.longest_tokens} tokens"
    return "the lengths of the data are not known; longer sequences take more memory"


def first_length(wishes: Wishes) -> int:
    """The tokens of a sequence that the data or the environment asks for, within what the model reads."""
    most = wishes.shape.ctx_tokens or 2**20
    if wishes.ctx_tokens is not None:
        return wishes.ctx_tokens
    shows_tasks = wishes.data is not None and wishes.data.kind == "demonstrations"
    if wishes.workload is not None and (wishes.task == "rl" or shows_tasks):
        return min(most, wishes.workload.ctx_tokens)
    longest = wishes.data.longest_tokens if wishes.data is not None else None
    if wishes.task == "sft" and longest is not None:
        return min(most, 8192, max(256, -(-longest // 256) * 256))
    return min(most, 2048)


def _tasks(work: Workload) -> Iterator[Setting]:
    known = "" if work.is_described else "how it works is not known: one turn and no tools are assumed"
    yield Setting("[[tasks]].kind", work.kind, work.words if work.is_described else known)
    if work.id:
        yield Setting("[[tasks]].id", work.id)
    yield Setting("[[tasks]].max_turns", work.max_turns)


def _source(data: ChosenData, is_chat: bool) -> Iterator[Setting]:
    yield Setting("[[data.sources]].kind", data.kind)
    for name in ("path", "subset"):
        if value := getattr(data, name):
            yield Setting(f"[[data.sources]].{name}", value)
    if data.field:
        yield Setting(f"[[data.sources]].{'messages_field' if is_chat else 'text_field'}", data.field)


def _learning(wishes: Wishes, level: Concession) -> Iterator[Setting]:
    batch = global_batch(wishes, level.ctx_tokens)
    yield Setting("batch.micro_batch", 1)
    yield Setting("batch.global_batch", batch, _explain_batch(wishes, batch * level.ctx_tokens))
    if wishes.task == "rl" and wishes.workload is not None:
        work = wishes.workload
        yield Setting("rl.group_size", work.group_size, "rollouts of a task, which are compared with each other")
        yield Setting("rl.answer_tokens", work.limit_answer(level.ctx_tokens), "of one answer")
        waits = "tools are slower than the engine" if work.executor != "none" else "all rollouts of a step at once"
        yield Setting("rl.concurrency", work.concurrency, waits)
        yield Setting("rl.rollout_limit_s", work.rollout_limit_s)
        yield Setting("inference.engine", "vllm")
        yield Setting("inference.ctx_tokens", level.ctx_tokens, "that of the training")
    rate, why = choose_rate(wishes, level)
    yield Setting("optim.lr", rate, why)
    yield Setting("optim.weight_decay", 0.1 if wishes.task == "pretrain" else 0.0)
    yield Setting("schedule.kind", "constant" if wishes.task == "rl" else "cosine")
    yield Setting("schedule.warmup_steps", 10)


def _explain_batch(wishes: Wishes, tokens: int) -> str:
    if wishes.task == "rl" and wishes.workload is not None:
        return f"rollouts of a step; usual for {wishes.workload.turns}-turn tasks"
    return f"{tokens:,} tokens of a step; the size that published runs use on any GPUs"


def choose_rate(wishes: Wishes, level: Concession) -> tuple[float, str]:
    """The peak learning rate, and where it is from."""
    if wishes.task == "pretrain":
        below = (rate for most, rate in _PRETRAIN_RATES if wishes.shape.parameters <= most)
        return next(below, _LARGEST_RATE), "that of GPT-3 of this size (arXiv 2005.14165, table 2.1)"
    what = "an adapter" if level.adapter else "all weights"
    return _RATES[wishes.task, level.adapter], f"usual for {what}; the first value to try others of"


def _rest(wishes: Wishes) -> Iterator[Setting]:
    if wishes.place.machines > 1:
        yield Setting("parallel.machines", wishes.place.machines, "`prime-train run` is started on every one of them")
    yield Setting("checkpoint.interval_steps", 100)
    yield Setting("checkpoint.keep_last", 2)
    yield Setting("checkpoint.final", "hf", "also writes the result as a Hugging Face folder")
    yield Setting("eval.interval_steps", 100)
    if wishes.task == "rl":
        yield Setting("eval.tasks", 64, "held-out tasks")
    weak = (wishes.place.hardware.compute_capability or _BF16_CAPABILITY) < _BF16_CAPABILITY
    yield Setting("precision.compute", "fp32" if weak else "bf16", "the GPU has no bf16" if weak else "")


def list_layouts(wishes: Wishes) -> Iterator[Assignments]:
    """Every way to spread the run over the GPUs, with what is computed again in the backward."""
    gpus, machines = wishes.place.hardware.gpus, wishes.place.machines
    for processes, served in _share_gpus(wishes):
        for shards in sorted({1, gpus // machines, processes}):
            if processes % shards:
                continue
            for recompute in ("none", "selective", "full"):
                layout: Assignments = (
                    ("parallel.processes", processes),
                    ("parallel.dp_shard", shards),
                    ("model.recompute", recompute),
                )
                yield (*layout, ("inference.tensor_parallel", served)) if served else layout


def _share_gpus(wishes: Wishes) -> Iterator[tuple[int, int]]:
    """GPUs that train and GPUs that serve: all of them for both, or each GPU for one of them."""
    gpus = wishes.place.hardware.gpus
    if wishes.task != "rl":
        yield gpus, 0
        return
    for served in (count for count in (1, 2, 4, 8) if count <= gpus and wishes.shape.heads % count == 0):
        if served == gpus:
            yield gpus, gpus
        trained = (count for count in range(gpus - served, 0, -1) if global_batch(wishes, 1) % count == 0)
        yield from ((count, served) for count in (next(trained, 0),) if count)
