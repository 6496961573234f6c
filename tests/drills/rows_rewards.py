"""Runs that learn from rewards: the trainer, the engine beside it, and an environment that harms them."""

from __future__ import annotations

from tests.drills import rewards
from tests.drills.drill import FINISHES, Row
from tests.drills.rewards import FIRST_STEP

GOES_ON = "rewards: the run goes on"  # with the steps of a run without the fault, bit by bit
ENVIRONMENT = "rewards: an environment"
_FAILED = 5  # not tried again
_REFUSES = "of the last 16 rollouts failed; the first: "


def _goes_on(name: str, found: str, says: str, **options: str) -> Row:
    return Row(GOES_ON, name, found, (says,), stage="rewards", options={"server": "", **options})


def _fails(name: str, fault: str, says: str, **options: str) -> Row:
    """It would fail the same way in another attempt, so there is none."""
    return _with_taskset(name, fault, "config", says, _FAILED, **options)


def _learns_nothing(name: str, fault: str) -> Row:
    """An alarm first, after 10 steps without an update, and the end after 50."""
    says = "no rollout of the last 50 steps earned a reward"
    return _with_taskset(name, fault, "rl_no_signal", says, _FAILED, **{"run.max_steps": "80"})


def _survives(name: str, fault: str, says: str, **options: str) -> Row:
    """The rollouts are counted, and the others are trained on."""
    return _with_taskset(name, fault, "", says, FINISHES, **options)


def _with_taskset(name: str, fault: str, found: str, says: str, exit_code: int, **options: str) -> Row:
    return Row(
        ENVIRONMENT,
        name,
        found,
        (says,),
        exit_code,
        attempts=1,
        prepare=rewards.write_tokenizer,
        stage="rewards",
        options={"taskset": fault, **options},
    )


ROWS: tuple[Row, ...] = (
    Row(
        GOES_ON,
        "the trainer is killed in an update",
        "signal",
        ("killed by signal 9",),
        stage="rewards",
        options={"harm": f"update {FIRST_STEP + 5}"},
    ),
    _goes_on("the trainer is killed while it writes weights", "signal", "killed by signal 9", harm="write 5"),
    _goes_on(
        "the trainer is killed between writing and announcing weights",
        "signal",
        "killed by signal 9",
        harm="announce 5",
    ),
    _goes_on("the server is killed in an answer", "signal", "inference killed by signal 9", server="dies 100"),
    _goes_on(
        "the server does not answer a rollout",
        "unknown",
        "/v1/completions",
        server="hangs 100",
        **{"rl.rollout_limit_s": "5"},
    ),
    _goes_on(
        "the server keeps old weights and reports the new ones",
        "unknown",
        "vLLM does not have the weights of version 21",
        server="keeps_old 5",
    ),
    _fails("each reward raises", "raises", f"{_REFUSES}KeyError: 'planted'"),
    _survives("a reward in 16 raises", "raises_seldom", "rollouts failed: KeyError: 'planted'"),
    _fails("no reward is answered", "hangs", f"{_REFUSES}the score of harmful took longer than 1 s"),
    _fails("each reward is not a number", "nan", f"{_REFUSES}the reward nan is not a finite number"),
    _survives(
        "one reward is not a number", "nan_once", "1 of 16 rollouts failed: the reward nan is not a finite number"
    ),
    _fails("each reward is a text", "text", f"{_REFUSES}the reward 'good' is not a finite number"),
    _survives("its process ends once", "ends_once", "run finished"),
    _fails("its process ends at each reward", "ends", "OSError: no more files"),
    _learns_nothing("no rollout earns a reward", "zero"),
    _learns_nothing("no prompt fits the context", "long"),
    _survives("a prompt in 8 does not fit the context", "long_seldom", "run finished"),
)
