"""The RunSpec: everything that the user requested, as one frozen value. No I/O, no defaults from the machine.

Rules, facts and estimates ask questions about a RunSpec (`model_name`, `train_gpus`, `write_root` and so on) and never
test which kind of file they judge. So another kind of config changes this package and no rule; only the estimate has
one module for each trainer. What can be trained is judged here, without torch, for rules, `verify-model` and the
trainer, and parameters are counted here, because the memory rule and the trainer must count the same.

The classes are dataclasses, because importing pydantic and building models for run.toml takes 128 ms, and 26 ms for the
same classes as frozen dataclasses. The schema is written once, as annotations that pydantic understands
(`Annotated[int, Gt(0), Doc(...)]`), and has two readers: `config` validates a file with positions and nearest names and
reports every fault, and pydantic validates resolved.json where the trainer reads it. A property test checks that the
two agree. The annotations stay texts until they are needed, because to evaluate them takes 2 ms.
"""

# ruff: noqa: RUF009, F403, F405 - the tables are frozen; a module has all tables of a subject

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

from prime_train.spec import jax as scripts
from prime_train.spec import prime_rl_parts
from prime_train.spec.annotations import Doc, Elsewhere, Key
from prime_train.spec.data import *
from prime_train.spec.evaluation import *
from prime_train.spec.model import *
from prime_train.spec.rl import Rl, TaskSource
from prime_train.spec.run import *
from prime_train.spec.server import Server
from prime_train.spec.supervision import *
from prime_train.spec.traits import OTHER_FORMAT, RUN_TOML, Traits

if TYPE_CHECKING:
    from pydantic import TypeAdapter

ENDLESS_STEPS = 2**53  # run.max_steps where a format allows a run without an end and the file sets none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that the user requested."""

    run: Run
    model: Model = Model()
    data: Data
    tokenizer: Tokenizer = Tokenizer()
    batch: Batch = Batch()
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    parallel: Parallel = Parallel()
    checkpoint: Checkpoint = Checkpoint()
    eval: Eval = Eval()
    precision: Precision = Precision()
    profile: Profile = Profile()
    rl: Annotated[Rl | None, Doc("Rollouts and policy update of a run with run.kind = rl.")] = None
    tasks: Annotated[
        tuple[TaskSource, ...],
        Doc("Environments: of the rollouts if run.kind is rl, and of the evaluation of any run."),
    ] = ()
    server: Annotated[
        Server | None,
        Key("inference"),
        Doc("The engine that answers [[tasks]], or a vLLM server beside a training or alone."),
    ] = None
    prime_train: PrimeTrain = PrimeTrain()
    launch: Annotated[prime_rl_parts.Launch | None, Elsewhere()] = None
    resume: Annotated[prime_rl_parts.Resume | None, Elsewhere()] = None
    saving: Annotated[prime_rl_parts.Saving | None, Elsewhere()] = None
    deployment: Annotated[prime_rl_parts.Deployment | None, Elsewhere()] = None
    trainer: Annotated[prime_rl_parts.Trainer | None, Elsewhere()] = None
    finetune: Annotated[prime_rl_parts.Finetune | None, Elsewhere()] = None
    lora: Annotated[prime_rl_parts.Lora | None, Elsewhere()] = None
    rollout: Annotated[prime_rl_parts.Rollout | None, Elsewhere()] = None
    environments: Annotated[prime_rl_parts.Environments | None, Elsewhere()] = None
    evaluation: Annotated[prime_rl_parts.Evaluation | None, Elsewhere()] = None
    inference: Annotated[prime_rl_parts.Inference | None, Elsewhere()] = None
    weight_broadcast: Annotated[prime_rl_parts.WeightBroadcast | None, Elsewhere()] = None
    transport: Annotated[prime_rl_parts.Transport | None, Elsewhere()] = None
    monitor: Annotated[prime_rl_parts.Monitor | None, Elsewhere()] = None
    recipe: Annotated[prime_rl_parts.Recipe | None, Elsewhere()] = None
    jax: Annotated[scripts.Jax | None, Elsewhere()] = None

    @property
    def config_format(self) -> Literal["run.toml", "prime-rl", "recipe", "script"]:
        """The format of the config. A recipe and a script are never started."""
        if self.recipe is not None:
            return "recipe"
        if self.jax is not None:
            return "script"
        inference = self.inference if self.server is None else None
        parts = (self.launch, self.trainer, self.rollout, inference)
        return "run.toml" if all(part is None for part in parts) else "prime-rl"

    @property
    def traits(self) -> Traits:
        return RUN_TOML if self.config_format == "run.toml" else OTHER_FORMAT

    @property
    def program(self) -> str:
        """The package in programs/ that trains or serves the run."""
        if self.run.program != "auto":
            return self.run.program
        if self.serves_only:
            return "vllm"
        return "bundled" if self.config_format == "run.toml" else "prime_rl"

    @property
    def serves_only(self) -> bool:
        """Whether a run.toml only has a server, and no training."""
        return self.run.kind == "serve"

    @property
    def launched_server(self) -> Server | None:
        """The vLLM server that is started as a process of its own; None without one."""
        return self.server if self.server is not None and self.server.engine == "vllm" else None

    @property
    def learns_from_rewards(self) -> bool:
        """Whether a run.toml trains by rollouts and rewards."""
        return self.run.kind == "rl"

    @property
    def hands_over(self) -> bool:
        """Whether the trainer hands its weights to the launched server: for rollouts, or for answers to [[tasks]]."""
        return self.launched_server is not None and (self.learns_from_rewards or (self.trains and bool(self.tasks)))

    @property
    def rollout_engine(self) -> Literal["vllm", "local", ""]:
        """What generates the rollouts; "" if the run has none. Without [inference] the trainer generates by itself."""
        if not self.learns_from_rewards:
            return ""
        return "local" if self.server is None else self.server.engine

    @property
    def policy(self) -> Rl:
        """[rl], with its defaults if the file has no such table."""
        return self.rl or Rl()

    @property
    def rollouts(self) -> prime_rl_parts.Rollout | None:
        """The rollouts of a run of either format: those of prime-rl, or of [rl] and the batch; None without any."""
        if self.rollout is not None or not self.learns_from_rewards:
            return self.rollout
        policy = self.policy
        return prime_rl_parts.Rollout(
            algorithm="grpo",
            ctx_tokens=self.data.ctx_tokens,
            batch_rollouts=self.global_batch,
            group_size=policy.group_size,
            max_completion_tokens=policy.answer_tokens,
            temperature=policy.temperature,
            max_async_level=policy.max_behind_steps,
            max_inflight=policy.concurrency,
        )

    # --- model and work ----------------------------------------------------------------------

    @property
    def trains(self) -> bool:
        match self.config_format:
            case "run.toml":
                return not self.serves_only
            case "prime-rl":
                return self.trainer is not None or self.finetune is not None
        return self.recipe is not None

    @property
    def model_field(self) -> str:
        """The RunSpec field with the name of the trained model, else of the served one."""
        if self.recipe is not None:
            return "recipe.model_name"
        if self.learns_from_rewards:
            return "model.path"
        if self.trainer is not None and self.trainer.model_name is not None:
            return "trainer.model_name"
        if self.inference is not None:
            return "inference.model_name"
        return "model.path" if self.traits.has_size_fields else "trainer.model_name"

    @property
    def model_name(self) -> str | None:
        """Name or folder of that model. None: not named; then the fields of [model] describe it in a run.toml."""
        part, _, field = self.model_field.partition(".")
        owner = getattr(self, part)
        return None if owner is None else getattr(owner, field)

    @property
    def tokenizer_name(self) -> str | None:
        """Name or folder of the tokenizer; that of the model if none is named."""
        trainer = (self.trainer.tokenizer_name or self.trainer.model_name) if self.trainer is not None else None
        return self.tokenizer.path or trainer or (self.rollout.model_name if self.rollout is not None else None)

    @property
    def global_batch(self) -> int:
        """Sequences in one optimizer step, over all processes."""
        if self.batch.global_batch is not None:
            return self.batch.global_batch
        if self.batch.global_batch_tokens is not None:
            return self.batch.global_batch_tokens // self.data.ctx_tokens
        return self.batch.micro_batch * self.parallel.processes

    def sequences_of(self, step: int) -> int:
        """Sequences in optimizer step `step`, counted from 1: `global_batch`, or fewer while the batch grows.

        It grows in equal stages of `batch.start_batch` sequences, so it does not depend on the number of processes.
        """
        start, steps = self.batch.start_batch, self.batch.ramp_steps
        if start is None or steps is None or step > steps:
            return self.global_batch
        stages = self.global_batch // start
        return start * (1 + (step - 1) * stages // steps)

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.data.ctx_tokens

    @property
    def dp_replicate(self) -> int:
        return self.parallel.dp_replicate or max(1, self.parallel.processes // self.parallel.dp_shard)

    # --- GPUs and processes ------------------------------------------------------------------

    @property
    def train_gpus(self) -> int | None:
        """GPUs that train, on all machines together; None if the config does not determine it."""
        if not self.trains:
            return 0
        if self.recipe is not None:
            recipe = self.recipe
            parts = (recipe.shards, recipe.replicas, recipe.tensor_parallel, recipe.pipeline_parallel)
            return recipe.gpus or (prod(part or 1 for part in parts) if any(parts) else None)
        if self.config_format == "run.toml":
            return self.parallel.processes
        return None if self.deployment is None else self.deployment.all_train_gpus

    @property
    def server_gpus(self) -> int:
        """GPUs that serve, on all machines together."""
        if self.inference is None:
            return 0
        deployed = (self.deployment.all_infer_gpus or 0) if self.deployment is not None else 0
        return max(deployed, self.inference.gpus)

    @property
    def shares_gpus(self) -> bool:
        """Whether the config gives a GPU to both the trainer and the server."""
        deployment = self.deployment
        if deployment is None or not self.trains or self.inference is None:
            return False
        return not set(deployment.train_gpu_ids or ()).isdisjoint(deployment.infer_gpu_ids or ())

    @property
    def gpus(self) -> int | None:
        """GPUs of the run on one machine; None if the config does not determine it, or has several machines.

        Trainer and server of a run.toml share GPUs on a machine that has fewer.
        """
        if self.config_format == "run.toml":
            return self.parallel.processes + self.server_gpus
        deployment, serves = self.deployment, self.inference is not None
        if deployment is None or (deployment.kind or "single_node") != "single_node":
            return None
        if deployment.train_gpu_ids is not None or deployment.infer_gpu_ids is not None:
            infer_ids = deployment.infer_gpu_ids if serves else ()
            return max((*(deployment.train_gpu_ids or ()), *(infer_ids or ())), default=-1) + 1
        return (deployment.train_gpus or 0) + (deployment.infer_gpus or 0 if serves else 0) or None

    @property
    def is_one_process(self) -> bool:
        return self.config_format == "run.toml" and self.parallel.processes == 1

    # --- write folder and time limits --------------------------------------------------------

    @property
    def write_root(self) -> str:
        """The folder that contains the write folder."""
        return self.run.dir if self.launch is None else self.launch.output_dir or self.traits.usual_write_root

    @property
    def write_folder(self) -> str:
        """The run's own folder below the write root; "" if it is the root itself."""
        return self.run.name if self.launch is None else self.launch.run_dir or self.launch.run_name or ""

    @property
    def silence_limit_s(self) -> float | int:
        """The value of `traits.silence_field`; 0 if it is not known."""
        if self.config_format == "run.toml":
            return self.prime_train.heartbeat.slow_phase_limit_s
        return (self.trainer.dist_timeout_s if self.trainer is not None else None) or 0


def to_json(run: RunSpec) -> str:
    """The text of resolved.json: every field by its own name, including defaults."""
    return json.dumps(asdict(run), indent=1, default=str)  # str: dates, which an environment of prime-rl may have


def from_json(text: str) -> RunSpec:
    """The RunSpec of a resolved.json. Raises pydantic.ValidationError if the text is invalid."""
    return _adapter().validate_json(text, strict=True)


@cache  # because it takes a tenth of a second, and `status` reads many runs
def _adapter() -> TypeAdapter[RunSpec]:
    from pydantic import TypeAdapter

    return TypeAdapter(RunSpec)
