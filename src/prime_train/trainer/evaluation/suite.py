"""Opens eval.benchmarks and runs those that are due. Judges no answer itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from prime_train.events import Measured, Phase
from prime_train.spec import Benchmark, RunSpec
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.evaluation.hellaswag import HellaSwag, open_hellaswag
from prime_train.trainer.evaluation.lm_eval_tasks import LmEvalTasks, open_tasks
from prime_train.trainer.evaluation.score import Scorer
from prime_train.trainer.loops.step import Training
from prime_train.trainer.parallel import World
from prime_train.trainer.tokenizer import LoadedTokenizer

_REPORT_EVERY_S = 10.0

Opened = HellaSwag | LmEvalTasks


@dataclass(frozen=True, slots=True)
class Suite:
    """The benchmarks of a run with what they ask."""

    opened: tuple[tuple[Benchmark, Opened], ...] = ()

    def measure(self, attempt: Attempt, training: Training, step: int) -> None:
        """Emit the values of the benchmarks that are due. Called by every rank."""
        for asked, opened in self.opened:
            if is_due(asked, attempt.run, step):
                named = asked.task or asked.name or asked.kind
                scorer = Scorer(
                    training=training,
                    ctx_tokens=attempt.run.data.ctx_tokens,
                    batch_tokens=attempt.run.batch.micro_batch * attempt.run.data.ctx_tokens,
                    report=_report_progress(attempt, named),
                )
                for result in opened.evaluate(scorer):
                    attempt.emit(Measured(attempt.number, step, *result))

    def close(self) -> None:
        """It has started nothing."""


def is_due(asked: Benchmark, run: RunSpec, step: int) -> bool:
    """Whether the evaluation after this step runs the benchmark."""
    interval_steps = run.eval.interval_steps
    if step >= run.run.max_steps or interval_steps is None:
        return True
    return step // interval_steps % asked.every == 0


def _report_progress(attempt: Attempt, named: str) -> Callable[[int, int], None]:
    """Emits the progress every ten seconds, so that a long evaluation does not count as a hang."""
    reported_s = time.monotonic()

    def report(done: int, all_of_them: int) -> None:
        nonlocal reported_s
        if time.monotonic() - reported_s >= _REPORT_EVERY_S:
            reported_s = time.monotonic()
            attempt.emit(Phase(attempt.number, "evaluate", f"{named}: {done} of {all_of_them} micro-batches"))

    return report


def open_suite(run: RunSpec, tokenizer: LoadedTokenizer, world: World) -> Suite:
    """Every benchmark of eval.benchmarks. Raises UserError where one cannot be run. Called by every rank."""
    if not run.eval.benchmarks:
        return Suite()

    def load() -> Suite:
        return Suite(tuple((asked, _open(run, tokenizer, number)) for number, asked in enumerate(run.eval.benchmarks)))

    return world.load_in_turn(load) or load()


def _open(run: RunSpec, tokenizer: LoadedTokenizer, number: int) -> Opened:
    asked = run.eval.benchmarks[number]
    if asked.kind == "hellaswag":
        return open_hellaswag(asked, tokenizer, run.data.ctx_tokens)
    return open_tasks(asked, number, tokenizer)
