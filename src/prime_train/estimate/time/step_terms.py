"""Converts the work of a step into seconds, term by term, with the published and fitted rates. Fits nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prime_train.config.prime_rl.schema import features_of_generation
from prime_train.estimate.time.step_flops import Flops, Kernel, StepSetup, StepWork, work_of
from prime_train.estimate.values import Hardware
from prime_train.registry.gpus import read_table

_PER_MICRO_BATCH = {
    *("linear", "experts", "attention", "head", "elementwise", "adapters", "dispatch", "tensor", "context"),
    *("layer_visits", "moe_visits", "adapter_visits", "expert_visits", "loop_visits"),
}
EXPERTS_ONE_BY_ONE = "experts one by one"
_FP8_SPEED = 2  # fp8 peak over bf16 peak: NVIDIA data sheets of H100, B200, L40S


class IdealTerm(NamedTuple):
    """One part of a step at full speed. `cost` and `keys` select the rate that multiplies it.

    A visit counts as one millisecond, because its rate is in milliseconds per visit.
    """

    name: str
    cost: str
    keys: tuple[str, ...]
    seconds: float
    formula: str


class TimeTerm(NamedTuple):
    """One part of a step. `measured`: its rate was fitted to rows of this trainer on this GPU class."""

    name: str
    seconds: float
    formula: str
    measured: bool


def kernel_in_use(setup: StepSetup, hardware: Hardware) -> Kernel:
    """The attention kernel that runs: the configured one if the GPU supports it.

    FlashAttention-3 needs Hopper, 4 needs Hopper or Blackwell. prime-rl's SFT of early 2026 uses neither for mixtures
    of experts: its rows with fa4 and fa2 on 8 B200 (Qwen3-30B-A3B, 16384 tokens) differ by 0.03 %, and the row with
    fa3 on 8 H200 is as slow as fa2. Source: prime-rl benchmarks/baselines@bffbdd057.
    """
    name = gpu_class(hardware)
    is_moe_sft = setup.trainer == "prime-rl" and setup.objective == "sft" and setup.shape.is_moe
    is_slow = is_moe_sft and features_of_generation(setup.generation or None).slow_moe_attention
    if is_slow and setup.kernel in ("fa3", "fa4"):
        return "fa2"
    if setup.kernel == "fa4":
        return {"blackwell": "fa4", "hopper": "fa3"}.get(name, "fa2")  # type: ignore[return-value]
    if setup.kernel == "fa3":
        return "fa3" if name == "hopper" else "fa2"
    if setup.kernel == "sdpa" and name in ("ampere", "workstation"):
        return "fa2"  # torch's scaled_dot_product_attention uses it there
    return setup.kernel


def ideal_terms(setup: StepSetup, hardware: Hardware, recompute_share: float = 1.0) -> list[IdealTerm]:
    """Every part of a step that takes time, at the peak of the hardware."""
    work = work_of(setup, hardware.gpus_per_node)
    terms = [*_compute_terms(setup, hardware, work, recompute_share), *_byte_terms(setup, hardware, work)]
    terms += _visit_terms(setup, hardware, work)
    return [term for term in terms if term.seconds > 0]


def step_terms(setup: StepSetup, hardware: Hardware, rates: TrainerRates) -> list[TimeTerm]:
    """Every part of a step with its seconds.

    A pipeline idles for the time of pp - 1 micro-batches, divided by the stages on each GPU. Source: GPipe, arXiv
    1811.06965, s. 2.3; Megatron-LM, arXiv 2104.04473, s. 2.2.
    """
    terms, in_micro_batches_s = [], 0.0
    for term in ideal_terms(setup, hardware, rates.recompute_share):
        cost, measured = rates.cost(term.cost, (setup.trainer, *term.keys))
        seconds = term.seconds * cost
        terms.append(TimeTerm(term.name, seconds, f"{term.formula} x {cost:.3g}", measured))
        in_micro_batches_s += seconds if term.cost in _PER_MICRO_BATCH else 0.0
    if setup.pp > 1:
        share = (setup.pp - 1) / (setup.micro_batches * setup.stages_per_gpu)
        stages = f" x {setup.stages_per_gpu} stages" if setup.stages_per_gpu > 1 else ""
        formula = f"{setup.pp - 1} of {setup.micro_batches} micro-batches{stages}, {in_micro_batches_s:.3g} s in all"
        terms.append(TimeTerm("pipeline bubble", share * in_micro_batches_s, formula, measured=False))
    return [term for term in terms if term.seconds > 0]


def _compute_terms(setup: StepSetup, hardware: Hardware, work: StepWork, share: float) -> list[IdealTerm]:
    name, peak = _power_class(hardware), hardware.peak_flops_bf16
    kernel = kernel_in_use(setup, hardware)
    is_fp8, precision = setup.precision != "bf16", setup.precision
    linear_keys = (f"{name}/{precision}", f"any/{precision}", "any") if is_fp8 else (name, "any")
    linear_peak = peak * _FP8_SPEED if is_fp8 else peak

    def term(label: str, cost: str, keys: tuple[str, ...], flops: float, at: float) -> IdealTerm:
        return IdealTerm(label, cost, keys, flops / at, f"{flops:.3g} FLOP / {at:.3g} FLOP/s")

    def weigh(flops: Flops) -> float:
        return flops.once + share * flops.again

    narrow = _narrow_head_cost(kernel, setup.shape.head_dim)
    attention_keys = (f"{name}/{kernel}", f"any/{kernel}", "any")
    return [
        term("linear layers", "linear", linear_keys, weigh(work.linear), linear_peak),
        term("head", "linear", (name, "any"), work.head_flops, peak),
        term("experts", "experts", (name, "any"), weigh(work.experts), peak),
        term(f"attention ({kernel})", "attention", attention_keys, narrow * weigh(work.attention), peak),
    ]


def _narrow_head_cost(kernel: Kernel, head_dim: int) -> float:
    """The cost of a FLOP of attention relative to heads of 128 numbers.

    The exponential of a score takes the same time for any head width, so narrow heads are slower: at 64
    FlashAttention-3 reaches three quarters of its speed at 128 (arXiv 2407.08608, s. 4.1), FlashAttention-2 nine
    tenths (arXiv 2307.08691, s. 4.1).
    """
    share = 0.3 if kernel in ("fa3", "fa4") else 0.1
    return 1 - share + share * 128 / max(1, head_dim)


def _byte_terms(setup: StepSetup, hardware: Hardware, work: StepWork) -> list[IdealTerm]:
    """Bytes through the GPU's memory, and bytes that it sends to the host and to other GPUs."""
    memory, links = hardware.bandwidth_bytes_per_s, links_of(hardware)
    # A ring over full machines uses all network ports of a machine together.
    between = min(links.node, links.network * hardware.gpus_per_node)
    tensor = links.node if setup.tp <= hardware.gpus_per_node else between
    context = links.node if setup.tp * setup.cp <= hardware.gpus_per_node else links.network
    tensor_keys = ("async", "any") if setup.async_tp else ("any",)
    any_gpu, by_class = ("any",), (gpu_class(hardware), "any")
    moved = (
        ("logits and loss", "head", any_gpu, work.head_bytes, memory),
        ("norms, gates and sums", "elementwise", any_gpu, work.elementwise_bytes, memory),
        ("adapters", "adapters", any_gpu, work.adapter_bytes, memory),
        ("expert dispatch", "dispatch", any_gpu, work.dispatch_bytes, memory),
        ("weights and their gradients", "weights", any_gpu, work.weight_bytes, memory),
        ("optimizer", "optimizer", any_gpu, work.optimizer_bytes, memory),
        ("activations to the host", "offload", by_class, work.offload_bytes, links.host),
        ("exchange within the machine", "node", by_class, work.node_bytes, links.node),
        ("exchange between machines", "network", by_class, work.network_bytes, between),
        ("exchange of tensor parallelism", "tensor", tensor_keys, work.tensor_bytes, tensor),
        ("exchange of context parallelism", "context", any_gpu, work.context_bytes, context),
    )
    return [
        IdealTerm(name, cost, keys, size / rate, f"{size:.3g} B / {rate:.3g} B/s")
        for name, cost, keys, size, rate in moved
    ]


def _visit_terms(setup: StepSetup, hardware: Hardware, work: StepWork) -> list[IdealTerm]:
    gpus = gpu_class(hardware)
    counted: tuple[tuple[str, str, tuple[str, ...], float], ...] = (
        ("collectives", "network_visits", ("any",), work.network_visits),
        ("kernel launches", "layer_visits", ("any",), work.layer_visits),
        ("routing", "moe_visits", ("any",), work.moe_visits),
        ("adapter launches", "adapter_visits", (gpus, "any"), work.adapter_visits),
        ("adapters of experts", "expert_visits", (f"{gpus}/{setup.generation}", gpus, "any"), work.expert_visits),
        (EXPERTS_ONE_BY_ONE, "loop_visits", ("any",), work.loop_visits),
        ("the step itself", "step", (setup.objective, "any"), 1.0),
    )
    return [IdealTerm(name, cost, keys, count * 1e-3, f"{count:.4g} x 1 ms") for name, cost, keys, count in counted]


Costs = Mapping[str, Mapping[str, float]]  # term -> key -> multiple of the ideal time, or milliseconds per visit


class Links(NamedTuple):
    """Bytes per second that one GPU can send in one direction."""

    node: float
    network: float
    host: float


class Spread(NamedTuple):
    """Factors of the estimate between which nine of ten measured rows lie.

    `low` and `high` hold at distance 0; their logarithms grow by `growth` per unit of distance.
    """

    low: float
    high: float
    growth: float


class TrainerRates(NamedTuple):
    """The costs of one trainer, by class of GPUs how far its rows are off, and the spread off its rows.

    `recompute_share`: cost of recomputed work relative to the same work the first time.
    """

    fitted: Costs
    published: Costs
    off: Spread
    spreads: Mapping[str, Spread] = {}
    fitted_rows: int = 0
    recompute_share: float = 1.0
    fitted_on: str = ""

    def spread_on(self, name: str) -> Spread:
        """The spread on a class of GPUs; where the trainer has none, that off its rows."""
        return self.spreads.get(name, self.off)

    def cost(self, term: str, keys: Sequence[str]) -> tuple[float, bool]:
        """(cost of a term, whether it is fitted) for the first known key; a fitted cost precedes a published one.

        The last key is "any", which every published term has.
        """
        fitted, published = self.fitted.get(term, {}), self.published[term]
        for key in keys:
            if key in fitted:
                return fitted[key], True
            if key in published:
                return published[key], False
        return published["any"], False


def gpu_class(hardware: Hardware) -> str:
    """The class of GPUs with the same kernels and limits: "ampere", "workstation", "hopper", "blackwell" or "other"."""
    match hardware.compute_capability:
        case (8, 0):
            return "ampere"
        case (9, _):
            return "hopper"
        case (10, _):
            return "blackwell"
        case (8, 6) | (8, 9) | (12, _):
            return "workstation"
    return "other"


def _power_class(hardware: Hardware) -> str:
    """The class of a GPU for matrix products.

    One below the power of its data sheet is a class of its own, as is a GeForce, whose power is enough for its peak.
    """
    return gpu_class(hardware) + ("-limited" if hardware.power_limited else "-geforce" if hardware.is_geforce else "")


def links_of(hardware: Hardware) -> Links:
    """The links of a GPU. Cards without a switch between them (PCIe) use the key "any"."""
    links, name = read_table("throughput.toml")["links"], "any" if hardware.is_card else gpu_class(hardware)
    one = [links[f"{part}_bytes_per_s"] for part in ("node", "network", "host")]
    return Links(*(float(rates.get(name, rates["any"])) for rates in one))


def published_costs() -> Costs:
    """Term -> key -> cost, from publications only."""
    return {term: entry["value"] for term, entry in read_table("throughput.toml")["cost"].items()}


def unmeasured_spread() -> Spread:
    """The spread for a trainer without rows."""
    return Spread(**read_table("throughput_fitted.toml")["unmeasured"]["spread"])


def rates_of(trainer: str) -> TrainerRates:
    """The rates of a trainer: fitted to its measured rows if there are any, else published ones only."""
    table = read_table("throughput_fitted.toml")
    entry = table["trainer"].get(trainer)
    if entry is None:
        return TrainerRates({}, published_costs(), unmeasured_spread())
    return TrainerRates(
        fitted=entry["cost"],
        published=published_costs(),
        off=unmeasured_spread(),
        spreads={name: Spread(**spread) for name, spread in entry["spread"].items()},
        fitted_rows=entry["rows"],
        recompute_share=entry["recompute_share"],
        fitted_on=entry["fitted_on"],
    )
