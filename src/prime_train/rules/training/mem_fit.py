"""Whether trainer and server fit into the memory of their GPUs, by the estimate. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from prime_train.core.findings import Problem, Severity
from prime_train.core.units import format_bytes
from prime_train.estimate.hardware import hardware_from_devices
from prime_train.estimate.model import shape as shapes
from prime_train.estimate.model.shape import ModelShape, ShapeError
from prime_train.estimate.values import Hardware
from prime_train.facts.facts import Facts
from prime_train.rules.rule import Problems, facts_rule, known
from prime_train.rules.training.par_processes import SHARED_GPU_FRACTION
from prime_train.rules.training.run_needs import anchor
from prime_train.spec import RunSpec
from prime_train.spec.answers import launched_server, machine_gpus, model_name, server_gpus, traits_of

if TYPE_CHECKING:
    from prime_train.estimate.memory.roles import RoleEstimate, RunMemory
    from prime_train.estimate.model.shape import ModelShape
    from prime_train.estimate.values import Hardware
    from prime_train.facts.facts import Facts


_SURELY = 0.05  # below it the lower bound of the estimate exceeds the GPU too
_SHOW = "prime-train estimate shows every term, and what to change"


@facts_rule("MEM004", Severity.ERROR, needs=("gpus",))
def server_beyond_its_gpus(run: RunSpec, facts: Facts) -> Problems:
    """The server must fit on its GPUs, with room for one request of full length.

    vLLM loads the weights before it sizes the cache from the rest: it ends out of memory or without cache blocks

    An error if the estimate's lower bound exceeds the GPU or leaves nothing for the cache, a warning with the
    probability if only its upper bound exceeds the GPU. A model that is not in the registry is not judged.

    Source: estimate/serving/server_memory.py, compared with what vLLM printed; docs/estimate.md.

    Bad (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-32B"
        [deployment]
        num_train_gpus = 1
        num_infer_gpus = 1
        [inference.vllm]
        data_parallel_size = 1
        [trainer.model]
        fsdp_cpu_offload = true
        optim_cpu_offload = false
        [facts.gpus]
        devices = [
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
        ]
    Good (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-0.6B"
        [deployment]
        num_train_gpus = 1
        num_infer_gpus = 1
        [inference.vllm]
        data_parallel_size = 1
        [facts.gpus]
        devices = [
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
        ]
    """
    yield from _check_role(run, facts, "inference", "inference.tensor_parallel")


@facts_rule("MEM005", Severity.ERROR, needs=("gpus",))
def trainer_beyond_its_gpus(run: RunSpec, facts: Facts) -> Problems:
    """The trainer must fit on its GPUs.

    the trainer runs out of memory in its first steps

    An error if the estimate's lower bound exceeds the GPU, a warning with the probability if only its upper bound does.
    A model that is not in the registry is not judged.

    Source: estimate/memory/training.py, compared with measured peaks; docs/estimate.md.

    Bad (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-8B"
        [deployment]
        num_train_gpus = 1
        num_infer_gpus = 1
        [inference.vllm]
        data_parallel_size = 1
        [facts.gpus]
        devices = [
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
        ]
    Good (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-0.6B"
        [deployment]
        num_train_gpus = 1
        num_infer_gpus = 1
        [inference.vllm]
        data_parallel_size = 1
        [facts.gpus]
        devices = [
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
        ]
    Bad:
        [model]
        layers = 32
        hidden_size = 4096
        heads = 32
        [facts.gpus]
        devices = [{name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]}]
    """
    yield from _check_role(run, facts, "trainer", anchor(run))


def _check_role(run: RunSpec, facts: Facts, role_name: str, at: str) -> Problems:
    from prime_train.estimate.memory.roles import memory_of

    fraction = run.inference.gpu_memory_fraction if run.inference is not None else None
    if fraction is not None and not 0 < fraction <= 1:  # rule MEM001
        return
    hardware, shape = hardware_of(run, facts), shape_of(run)
    if isinstance(hardware, Unknown) or isinstance(shape, Unknown):
        return
    memory, _ = memory_of(run, hardware, shape)
    too_large = fraction is not None and fraction > SHARED_GPU_FRACTION
    if memory.gpus.shared and (too_large or (fraction is None and launched_server(run) is not None)):
        return  # rules PAR007 and ENG004
    for role in memory.roles:
        if role.memory.role != role_name or role.fits:
            continue
        starts = role.served is None or role.served.starts
        yield Problem(
            at,
            _describe(role, hardware, starts),
            fix=_advice(run, hardware, shape, memory) or _SHOW,
            severity=None if role.chance.probability < _SURELY or not starts else Severity.WARNING,
        )


def _describe(role: RoleEstimate, hardware: Hardware, starts: bool) -> str:
    from prime_train.estimate.verdict import MemoryVerdict

    need, bounds = role.memory, role.memory.need
    low, high = format_bytes(bounds.low), format_bytes(bounds.high)
    span = low if low == high else f"{low} to {high}"
    room = f"{format_bytes(hardware.usable_bytes)} that {hardware.id} has"
    if not starts and need.needed_bytes <= hardware.usable_bytes:
        return f"nothing is left for one request of full length within `inference.gpu_memory_fraction` of the {room}"
    likely = f", and {role.chance.text}" if role.chance.verdict is MemoryVerdict.LIKELY else ""
    return f"the {need.role} takes {span} of the {room}{likely}"


def _advice(run: RunSpec, hardware: Hardware, shape: ModelShape, memory: RunMemory) -> str:
    """The first change that is enough, or else the first one that helps; "" if none does."""
    from prime_train.estimate.advice import Case, Keys, advise

    if run.recipe is not None:  # the file may be of another program, whose words only `estimate` knows
        return ""
    found = advise(Case(run, hardware, shape, memory), Keys(lambda field: f"`{field}`", bool))
    return next((line for line in found if "then it fits" in line), found[0] if found else "")


class Unknown(NamedTuple):
    """Why there is no estimate."""

    reason: str


def hardware_of(run: RunSpec, facts: Facts) -> Hardware | Unknown:
    """The GPU model of this machine, and how many of them the run uses. `facts.gpus` must be known."""
    gpus = known(facts.gpus)
    found = hardware_from_devices([(gpu.name, gpu.memory_bytes) for gpu in gpus.devices])
    if found is None:
        seen = gpus.devices[0].name if gpus.devices else gpus.reason or "none is there"
        return Unknown(f"there is no GPU whose speed is known ({seen})")
    wanted = machine_gpus(run)
    if wanted is None:
        return found
    shares = traits_of(run).shares_scarce_gpus and server_gpus(run) > 0
    return found._replace(gpus=min(wanted, found.gpus) if shares else wanted)


def shape_of(run: RunSpec) -> ModelShape | Unknown:
    """The shape of the trained model, or of the served one if nothing is trained; from size fields or the registry."""
    if traits_of(run).has_size_fields and run.model.path is None:
        try:
            return shapes.shape_from_run(run, run.tokenizer.vocab_size)
        except ShapeError as error:
            return Unknown(str(error))
    name = model_name(run)
    found = shapes.shape_from_registry(name) if name else None
    return found or Unknown(f"the registry does not have {name or 'the model'}")
