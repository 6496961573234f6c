"""What the user asked for, as one frozen value: the RunSpec. No I/O, no defaults taken from the machine.

A RunSpec answers questions about itself, so that no other package tests which kind of file it was read from. The
parts that only other formats have are in `elsewhere`, and None in a run.toml.
Plain dataclasses, because importing pydantic and building these models with it takes longer than a lint may. Each has
a docstring: dataclasses writes one where there is none, from a signature that costs a quarter of making the class.
"""

# ruff: noqa: RUF009, F403, F405 - the tables are frozen; `run` has all tables of run.toml

from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

from prime_train.spec import jax as scripts
from prime_train.spec import prime_rl_parts
from prime_train.spec.annotations import Doc, Elsewhere, Key
from prime_train.spec.run import *
from prime_train.spec.server import Server
from prime_train.spec.supervision import PrimeTrain

if TYPE_CHECKING:
    from pydantic import TypeAdapter

ENDLESS_STEPS = 2**53  # run.max_steps where a format allows a run without an end and the file sets none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The whole of what the user asked for."""

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
    server: Annotated[Server | None, Key("inference"), Doc("A vLLM server beside the training, or alone.")] = None
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
        """The format of the config. A recipe and a script are read, and never started."""
        if self.recipe is not None:
            return "recipe"
        if self.jax is not None:
            return "script"
        inference = self.inference if self.server is None else None
        parts = (self.launch, self.trainer, self.rollout, inference)
        return "run.toml" if all(part is None for part in parts) else "prime-rl"

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
        """Whether a run.toml trains nothing: its server is all there is."""
        return self.run.kind == "serve"

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
        """The RunSpec field that names the model that is trained, else the one that is served."""
        if self.recipe is not None:
            return "recipe.model_name"
        if self.trainer is not None and self.trainer.model_name is not None:
            return "trainer.model_name"
        if self.inference is not None:
            return "inference.model_name"
        return "model.path" if self.has_size_fields else "trainer.model_name"

    @property
    def model_name(self) -> str | None:
        """Name or folder of that model. None: not named; a run.toml then describes it by the fields of [model]."""
        part, _, field = self.model_field.partition(".")
        owner = getattr(self, part)
        return None if owner is None else getattr(owner, field)

    @property
    def has_size_fields(self) -> bool:
        """Whether [model] has the sizes of the model where no folder is named."""
        return self.config_format == "run.toml"

    @property
    def tokenizer_name(self) -> str | None:
        """Name or folder of the tokenizer; that of the model where none is named."""
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

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.data.ctx_tokens

    @property
    def dp_replicate(self) -> int:
        return self.parallel.dp_replicate or max(1, self.parallel.processes // self.parallel.dp_shard)

    @property
    def max_steps_key(self) -> str:
        """The key of run.max_steps in a file of this kind."""
        return "run.max_steps" if self.config_format == "run.toml" else "max_steps"

    # --- GPUs and processes ------------------------------------------------------------------

    @property
    def train_gpus(self) -> int | None:
        """GPUs that train, on all machines together; None where the config leaves that open."""
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
        """GPUs that the run takes on one machine; None where the config leaves that open, or takes several machines."""
        if self.config_format == "run.toml":
            return self.parallel.processes
        deployment, serves = self.deployment, self.inference is not None
        if deployment is None or (deployment.kind or "single_node") != "single_node":
            return None
        if deployment.train_gpu_ids is not None or deployment.infer_gpu_ids is not None:
            infer_ids = deployment.infer_gpu_ids if serves else ()
            return max((*(deployment.train_gpu_ids or ()), *(infer_ids or ())), default=-1) + 1
        return (deployment.train_gpus or 0) + (deployment.infer_gpus or 0 if serves else 0) or None

    @property
    def runs_without_gpu(self) -> bool:
        """Whether the trainer runs, slowly, on a machine without a GPU."""
        return self.config_format == "run.toml"

    @property
    def is_one_process(self) -> bool:
        return self.config_format == "run.toml" and self.parallel.processes == 1

    @property
    def raises_open_files_limit(self) -> bool:
        """Whether the trainer raises the soft limit of open files by itself."""
        return self.config_format == "run.toml"

    @property
    def required_package(self) -> str:
        """The distribution that the run's interpreter must have for the run to start; "" where any will do."""
        return "" if self.config_format == "run.toml" else "prime-rl"

    # --- the folder that it writes to --------------------------------------------------------

    @property
    def name_is_required(self) -> bool:
        """Whether the config must name the run. prime-rl names a run itself."""
        return self.config_format == "run.toml"

    @property
    def write_root_field(self) -> str:
        return "run.dir" if self.config_format == "run.toml" else "launch.output_dir"

    @property
    def usual_write_root(self) -> str:
        """The write root of a config that sets none."""
        return "runs" if self.config_format == "run.toml" else "outputs"

    @property
    def write_root(self) -> str:
        """The folder that holds the run's own one."""
        return self.run.dir if self.launch is None else self.launch.output_dir or self.usual_write_root

    @property
    def write_folder(self) -> str:
        """The run's own folder below the root; "" where the root itself is."""
        return self.run.name if self.launch is None else self.launch.run_dir or self.launch.run_name or ""

    @property
    def writes_run_directory(self) -> bool:
        """Whether that folder is a run directory: locked by one supervisor, with event files that are appended to."""
        return self.config_format == "run.toml"

    @property
    def silence_field(self) -> str:
        """The RunSpec field that says how long a save may take before it counts as a hang."""
        if self.config_format == "run.toml":
            return "prime_train.heartbeat.slow_phase_limit_s"
        return "trainer.dist_timeout_s"

    @property
    def silence_limit_s(self) -> float | int:
        """The value of that field; 0 where it is not known."""
        if self.config_format == "run.toml":
            return self.prime_train.heartbeat.slow_phase_limit_s
        return (self.trainer.dist_timeout_s if self.trainer is not None else None) or 0


def to_json(run: RunSpec) -> str:
    """The text of resolved.json: every field by its own name, defaults included."""
    import json  # here: a lint builds a RunSpec and never writes one

    return json.dumps(asdict(run), indent=1)


def from_json(text: str) -> RunSpec:
    """The RunSpec of a resolved.json. Raises pydantic.ValidationError where the text is not one."""
    return _adapter().validate_json(text, strict=True)


@cache  # to build it takes a tenth of a second, and `status` reads many runs
def _adapter() -> "TypeAdapter[RunSpec]":
    from pydantic import TypeAdapter

    return TypeAdapter(RunSpec)
