"""Measures rollout tokens/s and steps/s of the reinforcement learning loop and of TRL's GRPOTrainer.

    python bench/rl.py [--rounds 6] [--steps 8] [--threads N]

Both begin each round with the same weights, which imitated solved tasks for some steps, and pose the same tasks of
`reverse-text` with the same tokens, batch, groups, answer limit, sampling, optimizer and precision. In each round every
loop takes `--steps` steps, in rotating order, so a busy moment of the machine affects them all. Everything of a step is
measured: rollouts, rewards, update and metrics; the set-up is not. Ours is measured as it is by default, with the
rollouts of the next step beside the update (so the weights of a rollout lack one update), and without this overlap,
as TRL's loop works.

`--threads` limits the threads of one operation. On a machine that others use, 1 is fair to all loops: an operation on
two threads waits for the slower one. Our overlap uses two cores even then, so compare tokens per CPU second, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from anchors import BETAS, CLIP_NORM, WEIGHT_DECAY, trl_grpo
from anchors.trl_grpo import Block, Settings
from record import emit, write

from prime_train import spec
from prime_train.core.rundir import RunDir
from prime_train.environments.environment import Message
from prime_train.environments.load import open_environments
from prime_train.events import Event, EventLog, Phase
from prime_train.events.record import Record
from prime_train.spec.answers import global_batch, rl_settings
from prime_train.spec.rl import Rl, TaskSource
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.loops import grpo

ANSWER_TOKENS = 16
IMITATED_STEPS = 60  # enough that answers end, and far from enough that they are right
SIZES = {
    "0.6M": spec.Model(layers=3, hidden_size=128, heads=4, kv_heads=2, tie_embeddings=True),
    "3M": spec.Model(layers=4, hidden_size=256, heads=4, tie_embeddings=True),
}
RUN = spec.RunSpec(
    run=spec.Run(name="bench-rl", kind="rl", max_steps=IMITATED_STEPS),
    tasks=(TaskSource(kind="reverse-text", arguments={"min_letters": 4, "max_letters": 8}),),
    rl=Rl(group_size=8, answer_tokens=ANSWER_TOKENS, warmup_steps=IMITATED_STEPS),
    data=spec.Data(sources=(), ctx_tokens=64),
    tokenizer=spec.Tokenizer(vocab_size=288),
    batch=spec.Batch(micro_batch=64, global_batch=64),
    optim=spec.Optim(lr=2e-3, beta1=BETAS[0], beta2=BETAS[1], weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM),
    schedule=spec.Schedule(kind="constant", warmup_steps=0),
    checkpoint=spec.Checkpoint(interval_steps=None, final="hf"),
    eval=spec.Eval(interval_steps=None, tasks=1),
    precision=spec.Precision(compute="fp32"),
)
LR = 3e-4  # of the measured steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps of each loop in a round")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(Path(folder), size, arguments.rounds, arguments.steps)
    write("rl", rows)


def measure(folder: Path, size: str, rounds: int, steps: int) -> list[dict[str, Any]]:
    """The rows of one model size, after one round of warm-up."""
    train(replace(RUN, model=SIZES[size]), folder / "imitated")
    start = RunDir(folder / "imitated").final
    settings = describe_task(start, rounds, steps)

    def ours(behind_steps: int, seed: int) -> Block:
        policy = replace(rl_settings(RUN), warmup_steps=0, max_behind_steps=behind_steps)
        run = replace(
            RUN,
            run=replace(RUN.run, max_steps=steps, seed=seed),
            model=spec.Model(path=str(start)),
            tokenizer=spec.Tokenizer(path=str(start)),
            rl=policy,
            optim=replace(RUN.optim, lr=LR),
            checkpoint=replace(RUN.checkpoint, final="resumable"),
        )
        return train(run, folder / f"behind-{behind_steps}-{seed}")

    loops = {
        "prime-train": lambda seed: ours(1, seed),
        "prime-train, max_behind_steps = 0": lambda seed: ours(0, seed),
        "TRL GRPOTrainer": lambda seed: trl_grpo.run_block(settings, steps, seed),
    }
    names = list(loops)
    measured: dict[str, list[Block]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            block = loops[name](turn)
            if turn > 0:
                measured[name].append(block)
    return [row for name in names for row in describe(size, name, measured)]


def describe_task(start: Path, rounds: int, steps: int) -> Settings:
    """The task for TRL's trainer: as many prompts as it needs. Raises ValueError if a prompt has other tokens there."""
    count = (rounds + 1) * steps * global_batch(RUN) // rl_settings(RUN).group_size
    (environment,) = open_environments(RUN.tasks, RUN.run.seed)
    tasks = [environment.task("train", number) for number in range(count)]
    settings = Settings(
        folder=start,
        prompts=[[{"role": message.role, "content": message.content} for message in task.messages] for task in tasks],
        score=lambda number, text: environment.score(tasks[number], (Message("assistant", text),)),
        batch=global_batch(RUN),
        group_size=rl_settings(RUN).group_size,
        answer_tokens=ANSWER_TOKENS,
        lr=LR,
    )
    chat = load_chat_tokenizer(replace(RUN, tokenizer=spec.Tokenizer(path=str(start))))
    if trl_grpo.prompt_tokens(settings, 0) != list(chat.prompt_tokens(tasks[0].messages)):
        raise ValueError("the two loops give the model other prompts")
    return settings


class _Clock(EventLog):
    """An event log that notes wall and CPU seconds at the begin and the end of the steps."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "trainer-001-rank0")
        self.passed: dict[str, tuple[float, float]] = {}

    def append(self, event: Event) -> Record:
        if isinstance(event, Phase):
            self.passed.setdefault(event.name, (time.perf_counter(), time.process_time()))
        return super().append(event)


def train(run: spec.RunSpec, path: Path) -> Block:
    """One run of the trainer in this process, from its first step to its last."""
    path.mkdir()
    clock = _Clock(RunDir(path).events)
    threads = torch.get_num_threads()
    grpo.main(Attempt(run, RunDir(path), 1, 0, clock, 0), StopFlag(path / "stop"))
    torch.set_num_threads(threads)  # the loop changes it for the process
    clock.close()
    lines = [json.loads(line) for line in RunDir(path).metrics.read_text(encoding="utf-8").splitlines()]
    (began_s, began_cpu_s), (ended_s, ended_cpu_s) = clock.passed["train"], clock.passed["checkpoint"]
    rollouts = [line for line in lines if "reward" in line]
    return Block(
        steps=len(lines),
        seconds=ended_s - began_s,
        cpu_s=ended_cpu_s - began_cpu_s,
        answer_tokens=round(sum(line["answer_tokens"] * line["rollouts"] for line in rollouts)),
        reward=statistics.fmean(line["reward"] for line in rollouts) if rollouts else 0.0,
    )


def describe(size: str, name: str, measured: dict[str, list[Block]]) -> list[dict[str, Any]]:
    """A loop's rollout tokens/s and steps/s; ours with the ratio to TRL's, of the medians and per round."""
    other = measured["TRL GRPOTrainer"]
    amounts: dict[str, Callable[[Block], int]] = {
        "rollout tokens/s": lambda block: block.answer_tokens,
        "steps/s": lambda block: block.steps,
    }
    rows = []
    for what, amount in amounts.items():
        rates = [amount(block) / block.seconds for block in measured[name]]
        beside = [amount(block) / block.seconds for block in other]
        by_round = [mine / theirs for mine, theirs in zip(rates, beside, strict=True)]
        extra = (
            {}
            if measured[name] is other
            else {
                "beside": "TRL GRPOTrainer",
                "ratio": round(statistics.median(rates) / statistics.median(beside), 3),
                "ratio_by_round_median": round(statistics.median(by_round), 3),
                "ratio_by_round_min": round(min(by_round), 3),
            }
        )
        per_cpu_s = [amount(block) / block.cpu_s for block in measured[name]]
        rows.append(
            emit(
                f"rl, {size} parameters: {name}",
                rates,
                unit=what,
                min=round(min(rates), 3),
                max=round(max(rates), 3),
                **extra,
                per_cpu_s=round(statistics.median(per_cpu_s), 3),
                answer_tokens=round(
                    sum(b.answer_tokens for b in measured[name]) / sum(b.steps for b in measured[name])
                ),
                reward=round(statistics.fmean(block.reward for block in measured[name]), 3),
                threads=torch.get_num_threads(),
                load_average=round(os.getloadavg()[1], 1),
                torch=torch.__version__,
            )
        )
    return rows


if __name__ == "__main__":
    main()
