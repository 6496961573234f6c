"""Answers of a RunSpec to the questions of all other packages, the same for every format. Pure.

A question that three places ask has an answer here, so that no place asks for the format of the config instead.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Literal, NamedTuple

from prime_train.spec.prime_rl_parts import PrimeRl, RolloutPart
from prime_train.spec.rl import Rl
from prime_train.spec.run_spec import RunSpec
from prime_train.spec.server import Server


class Traits(NamedTuple):
    """What is the same for all configs of one format. The defaults are for run.toml."""

    has_size_fields: bool = True  # [model] has the sizes of a model without a folder
    runs_without_gpu: bool = True  # the trainer also runs, slowly, on a machine without a GPU
    shares_scarce_gpus: bool = True  # trainer and server share the GPUs of a machine that has too few for both
    raises_open_files_limit: bool = True  # the trainer raises the soft limit of open files itself
    name_is_required: bool = True  # prime-rl names a run itself
    writes_run_directory: bool = True  # one supervisor locks the write folder, and appends to event files in it
    required_package: str = ""  # the distribution that the run's interpreter must have
    max_steps_key: str = "run.max_steps"
    write_root_field: str = "run.dir"
    usual_write_root: str = "runs"  # of a config that sets none
    silence_field: str = "prime_train.heartbeat.slow_phase_limit_s"  # the time limit of a save, then it is a hang


RUN_TOML = Traits()
OTHER_FORMAT = Traits(
    has_size_fields=False,
    runs_without_gpu=False,
    shares_scarce_gpus=False,
    raises_open_files_limit=False,
    name_is_required=False,
    writes_run_directory=False,
    required_package="prime-rl",
    max_steps_key="max_steps",
    write_root_field="launch.output_dir",
    usual_write_root="outputs",
    silence_field="trainer.dist_timeout_s",
)
# A training that is described for an estimate: nothing is known of its program but what registry/recipes.toml has.
RECIPE = OTHER_FORMAT._replace(required_package="", raises_open_files_limit=True)

_NO_PARTS = PrimeRl()
_PARTS = frozenset(PrimeRl.__dataclass_fields__)


def traits_of(run: RunSpec) -> Traits:
    if run.format == "recipe":
        return RECIPE
    return RUN_TOML if run.format == "run.toml" else OTHER_FORMAT


def prime_rl_of(run: RunSpec) -> PrimeRl:
    """The parts of a prime-rl file; for any other format a value without parts."""
    return run.prime_rl or _NO_PARTS


def saves_in_background(run: RunSpec) -> bool:
    """Whether the training goes on while a checkpoint is written: prime-rl waits for its saves."""
    return prime_rl_of(run).trainer is None and run.checkpoint.async_save


def part_of(run: RunSpec, name: str) -> Any:
    """The part that a field such as "trainer.attention" begins with; None if the run has no such part."""
    if name in _PARTS:
        return getattr(prime_rl_of(run), name)
    return rollouts_of(run) if name == "rollouts" else getattr(run, name)


def replace_parts(run: RunSpec, /, **parts: Any) -> RunSpec:
    """The run with other parts, each by the name that its fields begin with. None does not make it a prime-rl run."""
    theirs = {name: part for name, part in parts.items() if name in _PARTS}
    ours = {name: part for name, part in parts.items() if name not in _PARTS}
    if run.prime_rl is not None or any(part is not None for part in theirs.values()):
        ours["prime_rl"] = replace(prime_rl_of(run), **theirs)
    return replace(run, **ours)


def program_name(run: RunSpec) -> str:
    """The package in programs/ that trains or serves the run."""
    if run.run.program != "auto":
        return run.run.program
    if run.run.kind in ("serve", "command"):
        return "vllm" if run.run.kind == "serve" else "command"
    return "bundled" if run.format == "run.toml" else "prime_rl"


def find_missing_part(run: RunSpec) -> str:
    """What the program of a run needs and the run lacks; "" if nothing. Only an edited resolved.json lacks it."""
    match program_name(run):
        case "command" if run.command is None:
            return "it is the run of a command, and has no table command"
        case "prime_rl" if prime_rl_of(run).launch.output_dir is None:
            return "it is a run of prime-rl, and names no output_dir"
    return ""


def trains(run: RunSpec) -> bool:
    """Whether the config describes a training. A run that does not serves a model, or supervises a command."""
    match run.format:
        case "run.toml":
            return run.run.kind not in ("serve", "command")
        case "prime-rl":
            parts = prime_rl_of(run)
            return parts.trainer is not None or parts.finetune is not None
    return run.recipe is not None


def may_save(run: RunSpec) -> bool:
    """Whether the run may write checkpoints: any run but one that only serves."""
    return trains(run) or run.command is not None


def launched_server(run: RunSpec) -> Server | None:
    """The vLLM server that is started as a process of its own; None without one."""
    return run.server if run.server is not None and run.server.engine == "vllm" else None


def hands_over_weights(run: RunSpec) -> bool:
    """Whether the trainer hands its weights to the launched server: for rollouts, or for answers to [[tasks]]."""
    if launched_server(run) is None:
        return False
    return policy_of(run) is not None or (trains(run) and bool(run.tasks))


def policy_of(run: RunSpec) -> Rl | None:
    """The settings of a run.toml that learns from rewards; None for any other run."""
    return rl_settings(run) if run.run.kind == "rl" else None


def rl_settings(run: RunSpec) -> Rl:
    """[rl], with its defaults if the file has no such table. Its limits also hold for tasks that are only evaluated."""
    return run.rl or Rl()


def rollout_engine(run: RunSpec) -> Literal["vllm", "local", ""]:
    """What generates the rollouts; "" if the run has none. Without [inference] the trainer generates by itself."""
    if policy_of(run) is None:
        return ""
    return "local" if run.server is None else run.server.engine


def rollouts_of(run: RunSpec) -> RolloutPart | None:
    """The rollouts of a run of either format: those of prime-rl, or of [rl] and the batch; None without any."""
    policy = policy_of(run)
    if policy is None:
        return prime_rl_of(run).rollout
    return RolloutPart(
        algorithm="grpo",
        ctx_tokens=run.data.ctx_tokens,
        batch_rollouts=global_batch(run),
        group_size=policy.group_size,
        max_completion_tokens=policy.answer_tokens,
        temperature=policy.temperature,
        max_async_level=policy.max_behind_steps,
        max_inflight=policy.concurrency,
    )


def model_field(run: RunSpec) -> str:
    """The RunSpec field with the name of the trained model, else of the served one."""
    if run.recipe is not None:
        return "recipe.model_name"
    if policy_of(run) is not None:
        return "model.path"
    trainer = prime_rl_of(run).trainer
    if trainer is not None and trainer.model_name is not None:
        return "trainer.model_name"
    if run.inference is not None:
        return "inference.model_name"
    return "model.path" if traits_of(run).has_size_fields else "trainer.model_name"


def model_name(run: RunSpec) -> str | None:
    """Name or folder of that model. None: not named; then the fields of [model] describe it in a run.toml."""
    part, _, field = model_field(run).partition(".")
    owner = part_of(run, part)
    return None if owner is None else getattr(owner, field)


def tokenizer_name(run: RunSpec) -> str | None:
    """Name or folder of the tokenizer; that of the model if none is named."""
    trainer, rollout = prime_rl_of(run).trainer, prime_rl_of(run).rollout
    trained = (trainer.tokenizer_name or trainer.model_name) if trainer is not None else None
    return run.tokenizer.path or trained or (rollout.model_name if rollout is not None else None)


def global_batch(run: RunSpec) -> int:
    """Sequences in one optimizer step, over all processes."""
    if run.batch.global_batch is not None:
        return run.batch.global_batch
    if run.batch.global_batch_tokens is not None:
        return run.batch.global_batch_tokens // run.data.ctx_tokens
    return run.batch.micro_batch * run.parallel.processes


def sequences_in_step(run: RunSpec, step: int) -> int:
    """Sequences in optimizer step `step`, counted from 1: `global_batch`, or fewer while the batch grows.

    It grows in equal stages of `batch.start_batch` sequences, so it does not depend on the number of processes.
    """
    start, steps = run.batch.start_batch, run.batch.ramp_steps
    if start is None or steps is None or step > steps:
        return global_batch(run)
    stages = global_batch(run) // start
    return start * (1 + (step - 1) * stages // steps)


def fewest_sequences(run: RunSpec) -> int:
    """Sequences in the smallest optimizer step of a run."""
    return min(global_batch(run), sequences_in_step(run, 1))


def tokens_per_step(run: RunSpec) -> int:
    return global_batch(run) * run.data.ctx_tokens


def replicas_of(run: RunSpec) -> int:
    """Replicas of the model that a run.toml trains."""
    layout = run.parallel
    return (layout.dp_replicate or max(1, layout.group_processes // layout.dp_shard)) * max(1, layout.replicas)


def train_gpus(run: RunSpec) -> int | None:
    """GPUs that train, on all machines together; None if the config does not determine it."""
    if not trains(run):
        return 0
    if run.recipe is not None:
        recipe = run.recipe
        parts = (recipe.shards, recipe.replicas, recipe.tensor_parallel, recipe.pipeline_parallel)
        return recipe.gpus or (prod(part or 1 for part in parts) if any(parts) else None)
    if run.format == "run.toml":
        return run.parallel.processes
    deployment = prime_rl_of(run).deployment
    return None if deployment is None else deployment.all_train_gpus


def server_gpus(run: RunSpec) -> int:
    """GPUs that serve, on all machines together."""
    if run.inference is None:
        return 0
    deployment = prime_rl_of(run).deployment
    deployed = (deployment.all_infer_gpus or 0) if deployment is not None else 0
    return max(deployed, run.inference.gpus)


def shares_gpus(run: RunSpec) -> bool:
    """Whether the config gives a GPU to both the trainer and the server."""
    deployment = prime_rl_of(run).deployment
    if deployment is None or not trains(run) or run.inference is None:
        return False
    return not set(deployment.train_gpu_ids or ()).isdisjoint(deployment.infer_gpu_ids or ())


def machine_gpus(run: RunSpec) -> int | None:
    """GPUs of the run on one machine; None if the config does not determine it, or has several machines.

    Trainer and server of a run.toml share GPUs on a machine that has fewer.
    """
    if run.format == "run.toml":
        return run.parallel.processes + server_gpus(run)
    deployment, serves = prime_rl_of(run).deployment, run.inference is not None
    if deployment is None or (deployment.kind or "single_node") != "single_node":
        return None
    if deployment.train_gpu_ids is not None or deployment.infer_gpu_ids is not None:
        infer_ids = deployment.infer_gpu_ids if serves else ()
        return max((*(deployment.train_gpu_ids or ()), *(infer_ids or ())), default=-1) + 1
    return (deployment.train_gpus or 0) + (deployment.infer_gpus or 0 if serves else 0) or None


def is_one_process(run: RunSpec) -> bool:
    return run.format == "run.toml" and run.parallel.processes == 1


def write_root(run: RunSpec) -> str:
    """The folder that contains the write folder."""
    if run.prime_rl is None:
        return run.run.dir
    return run.prime_rl.launch.output_dir or traits_of(run).usual_write_root


def write_folder(run: RunSpec) -> str:
    """The run's own folder below the write root; "" if it is the root itself."""
    if run.prime_rl is None:
        return run.run.name
    return run.prime_rl.launch.run_dir or run.prime_rl.launch.run_name or ""


def silence_limit_s(run: RunSpec) -> float | int:
    """The value of `traits.silence_field`; 0 if it is not known."""
    if run.format == "run.toml":
        return run.prime_train.heartbeat.slow_phase_limit_s
    trainer = prime_rl_of(run).trainer
    return (trainer.dist_timeout_s if trainer is not None else None) or 0
