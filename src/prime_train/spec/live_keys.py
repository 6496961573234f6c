"""Which keys of a run.toml change while the run trains, and for each other key why it does not. A table; pure.

Types and bounds of a key are those of the schema. A key that is in neither table changes by a stop and another start.
"""

from __future__ import annotations

from typing import NamedTuple

TRAINED = ("pretrain", "sft", "rl", "audio")
SUPERVISED = (*TRAINED, "serve", "command")
ON_TEXT = ("pretrain", "sft")


class LiveKey(NamedTuple):
    """A key that changes live. `effect`: what it does from the step on at which it takes effect."""

    key: str
    effect: str
    kinds: tuple[str, ...] = TRAINED  # of runs that use it


LIVE_KEYS = (
    LiveKey("optim.lr", "the schedule goes on at its place, times this rate"),
    LiveKey("optim.muon_lr", "the schedule goes on at its place, times this rate, for the matrices of Muon"),
    LiveKey("optim.weight_decay", "each update decays the matrices by it"),
    LiveKey("optim.clip_norm", "gradients are clipped to it"),
    LiveKey("optim.skip_steps", "these steps read their data and change no weights", (*ON_TEXT, "audio")),
    LiveKey("eval.interval_steps", "evaluations are at its multiples"),
    LiveKey("checkpoint.interval_steps", "checkpoints are at its multiples"),
    LiveKey("run.max_steps", "the run ends after it, and the schedule is that of a run of this length"),
    LiveKey("batch.micro_batch", "a step has the same sequences in other parts"),
    LiveKey("data.sampling_probs", "the next buffer of documents is drawn by them", ON_TEXT),
    LiveKey("data.transforms", "the documents of the next buffer are changed by them", ("pretrain",)),
    LiveKey("data.loader_workers", "other workers prepare what comes next", (*ON_TEXT, "audio")),
    LiveKey("parallel.sync_every", "the next round ends at its next multiple", ON_TEXT),
    LiveKey("rl.temperature", "the rollouts that start after it have this temperature", ("rl",)),
    LiveKey("rl.kl_coef", "the loss has this weight of the divergence", ("rl",)),
    LiveKey("prime_train.heartbeat.startup_limit_s", "at once: a longer silence is a hang", SUPERVISED),
    LiveKey("prime_train.heartbeat.step_limit_s", "at once: a longer silence is a hang", SUPERVISED),
    LiveKey("prime_train.heartbeat.slow_phase_limit_s", "at once: a longer silence is a hang", SUPERVISED),
    LiveKey("prime_train.cleanup.max_disk_gb", "at once: space is freed above it", SUPERVISED),
    LiveKey("prime_train.cleanup.max_used_ratio", "at once: space is freed above it", SUPERVISED),
    LiveKey("prime_train.budget_usd", "at once: an alarm follows when the cost so far passes it", SUPERVISED),
    LiveKey("prime_train.instability.policy", "at once: for the next instability", SUPERVISED),
    LiveKey("prime_train.instability.action", "at once: for the next instability", SUPERVISED),
    LiveKey("prime_train.instability.factor", "at once: for the next instability", SUPERVISED),
    LiveKey("prime_train.instability.limit", "at once: for the next instability", SUPERVISED),
    LiveKey("prime_train.instability.cool_down_steps", "at once: for the next instability", SUPERVISED),
)
OF_SUPERVISOR = "prime_train."  # how a key begins that the supervisor takes at once, without the ranks


class FixedKey(NamedTuple):
    """Why a key, or all keys of a table, do not change live."""

    name: str  # of a key, or of a table
    why: str
    in_another_run: bool = False  # no later attempt of the run may change it either


FIXED_KEYS = (
    FixedKey("run.name", "it names the directory of the run", in_another_run=True),
    FixedKey("run.dir", "it names the directory of the run", in_another_run=True),
    FixedKey("run.kind", "the checkpoints belong to a run of this kind", in_another_run=True),
    FixedKey("run.seed", "it decides what each step reads", in_another_run=True),
    FixedKey("run.program", "the program of the run is started already"),
    FixedKey("audio", "it decides the clips of each step and the shape of the weights", in_another_run=True),
    FixedKey("model", "the weights in memory have this shape", in_another_run=True),
    FixedKey("model.compile", "the compiled blocks are in memory"),
    FixedKey("model.recompute", "the blocks in memory were built with it"),
    FixedKey("tokenizer", "the weights were trained on its tokens", in_another_run=True),
    FixedKey("data", "it decides what each step reads", in_another_run=True),
    FixedKey("data.allowed_transforms", "only the config names code that is imported"),
    FixedKey("batch", "it decides what each step reads", in_another_run=True),
    FixedKey("optim.kind", "the states of the optimizer in memory are of this kind", in_another_run=True),
    FixedKey("optim", "the moments in memory were averaged with it"),
    FixedKey("optim.on_spike", "the norms by which a spike is judged are gathered from the first step on"),
    FixedKey("optim.decay_embeddings", "the groups of the optimizer are built with it"),
    FixedKey("schedule", "the rate would jump to another curve; optim.lr and run.max_steps change live"),
    FixedKey("batch.with_replicas", "the replicas are started with it"),
    FixedKey("batch.rate_ramp_steps", "the replicas are started with it"),
    FixedKey("parallel", "the processes are started and connected"),
    FixedKey("checkpoint", "the writer of checkpoints is started with it; its interval_steps changes live"),
    FixedKey("eval", "the held-out text is loaded at the start; its interval_steps changes live"),
    FixedKey("precision", "the kernels are chosen at the start"),
    FixedKey("profile", "the traces are planned at the start"),
    FixedKey("rl", "the rollouts in progress were started with it"),
    FixedKey("tasks", "the environments are started", in_another_run=True),
    FixedKey("inference", "the server is started with it"),
    FixedKey("prime_train", "the supervisor reads it when it starts"),
)


def find_live(key: str) -> LiveKey | None:
    """The entry of a key that changes live; None for any other key."""
    return next((each for each in LIVE_KEYS if each.key == key), None)


def find_fixed(key: str) -> FixedKey | None:
    """The nearest entry of a key that does not change live: its own, or that of its table."""
    own = (each for each in FIXED_KEYS if key == each.name or key.startswith(f"{each.name}."))
    return max(own, key=lambda each: len(each.name), default=None)
