"""What a session should measure, with the source of each expectation, and what others have published. Data only."""

from __future__ import annotations

from typing import NamedTuple

ESTIMATE = "predicted by the project's own estimate, low on an H200 to high on an H100"
ROUNDING = "rounding of the type"
READ = "judged from the code, before anything was measured"
GOAL = "goal"


class Expectation(NamedTuple):
    """The `key` of every row of `step` whose name contains `what` is between `low` and `high`; None = no bound."""

    step: str
    what: str
    key: str
    low: float | None
    high: float | None
    source: str


EXPECTATIONS = (
    Expectation("varlen", "", "error", None, 3e-3, "1.4e-3 to 2.4e-3 of the definition on a CPU"),
    Expectation("kernels", "fp32", "error", None, 1e-5, ROUNDING),
    Expectation("kernels", "bf16", "error", None, 2e-2, ROUNDING),
    Expectation("speed-124m", "prime-train", "step_ms", 60, 172, ESTIMATE),
    Expectation("speed-124m", "prime-train", "reserved_gib", 13.7, 17.2, ESTIMATE),
    Expectation("speed-124m", "prime-train", "first_step_s", None, 60, READ),
    Expectation("speed-124m", "hand-written loop", "mfu", 0.35, 0.42, READ),
    Expectation("speed-124m", "hand-written loop", "prime_train_speed", 1.0, None, GOAL),
    Expectation("gaps", "in a row", "busy_ratio", 0.92, None, READ),
    Expectation("gaps", "in a row", "host_syncs", None, 1.0, GOAL),
    Expectation("speed-1b", "prime-train", "step_ms", 212, 579, ESTIMATE),
    Expectation("speed-1b", "prime-train", "reserved_gib", 46.7, 58.7, ESTIMATE),
    Expectation("speed-1b", "prime-train", "mfu", 0.40, 0.50, READ),
    Expectation("speed-1b", "hand-written loop", "prime_train_speed", 1.0, None, GOAL),
    Expectation("speed-350m", "prime-train", "step_ms", 81, 226, ESTIMATE),
    Expectation("speed-350m", "prime-train", "reserved_gib", 20.2, 25.4, ESTIMATE),
    Expectation("speed-350m", "hand-written loop", "prime_train_speed", 1.0, None, GOAL),
    Expectation("fsdp1", "losses", "difference", None, 2e-2, ROUNDING),
    Expectation("moe", "grouped product", "error", None, 1e-2, ROUNDING),
    Expectation("moe", "grouped product", "idle_gradient", 0.0, 0.0, "no token, no gradient"),
    Expectation("run", "killed and resumed", "attempts", 2, 2, "one kill"),
    Expectation("run", "killed and resumed", "resumed_at", 1, None, "a checkpoint was complete"),
    Expectation("run", "killed and resumed", "difference", None, 2e-2, "atomic additions in FlashAttention's backward"),
    Expectation("run", "GPU watch", "utilisation_percent", 1, 100, READ),
    Expectation("run", "GPU watch", "used_gib", 0.3, None, READ),
    Expectation("rl", "GPU beside CPU", "step_time_ratio", 1.0, None, READ),  # the host starts each kernel of a token
    Expectation("memory", "B, ", "error", -0.05, 0.05, GOAL),
    Expectation("fp8", "fp8", "speed_of_bf16", 1.1, 1.3, READ),
)


class Published(NamedTuple):
    """A figure of another trainer. `mfu`: of the dense bf16 peak of its card, so it scales to another card by peaks."""

    name: str
    mfu: float
    source: str


PUBLISHED = (
    Published(
        "torchtitan, Llama 3.1 8B on 8 H100, compile",
        0.39,
        "github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: 6,667 tokens/s a GPU",
    ),
    Published(
        "nanochat, GPT-2 in 3.04 h on 8 H100",
        0.50,
        "github.com/karpathy/nanochat, dev/LEADERBOARD.md: 4.33e19 FLOP in 10,949 s, of 989e12 a second",
    ),
)
