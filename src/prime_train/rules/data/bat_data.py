"""Batch size and number of steps, compared with the measured size of the data. Pure: the facts are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from prime_train.core.findings import Problem, Severity
from prime_train.core.units import format_count
from prime_train.rules.rule import Problems, facts_rule, known
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import prime_rl_of, tokens_per_step

if TYPE_CHECKING:
    from prime_train.facts.facts import DataLengths, Facts

_WORTH_EPOCHS = 4  # up to here repeated data is nearly as good as fresh data. Source: arXiv 2305.16264, s. 1


class _Need(NamedTuple):
    """How much data one step takes, and how much there is, in the same unit."""

    at: str
    per_step: float
    available: float
    unit: str
    per_step_text: str


@facts_rule("BAT015", Severity.WARNING, needs=("data_lengths",))
def batch_beyond_the_data(run: RunSpec, facts: Facts) -> Problems:
    """A batch should not be larger than the data.

    every step uses all of the data, some of it more than once: each gradient is that of the whole data set

    Judged for local data, whose rows are counted.

    Source: trainer/data/order.py (an epoch is a permutation of the documents); prime-rl, orchestrator.batch_size.

    Bad:
        [[facts.data_lengths]]
        field = "data.sources.0.path"
        rows = 3
        mean_tokens = 100.0
    Bad (prime-rl 2026-08 sft):
        [[facts.data_lengths]]
        field = "finetune.data_name"
        rows = 20
    Bad (prime-rl 2026-08):
        [[facts.data_lengths]]
        field = "environments.train.0.args.dataset_path"
        rows = 5
    Good (prime-rl 2026-08 sft):
        [[facts.data_lengths]]
        field = "finetune.data_name"
        rows = 20000
    """
    for need in _needs(run, known(facts.data_lengths)):
        if 0 < need.available < need.per_step:
            yield Problem(
                need.at,
                f"{need.per_step_text}, and there are {format_count(need.available)} {need.unit}",
                fix=f"a smaller batch, or more {'data' if need.unit == 'tokens' else need.unit}",
            )


@facts_rule("BAT020", Severity.ERROR, needs=("data_lengths",))
def first_records_broken(_run: RunSpec, facts: Facts) -> Problems:
    """The records of local data must be rows with a text; a file of tokens must be as its header has it.

    the trainer ends at the first record that it cannot read, after the queue and the load of the model

    Judged for local data: five records of up to eight files are read, and more for a third of a second.

    Source: facts/data_lengths_program.py.

    Bad:
        [[facts.data_lengths]]
        field = "data.sources.0.path"
        broken = "corpus/a.jsonl: record 2 is no object"
    Good:
        [[facts.data_lengths]]
        field = "data.sources.0.path"
        rows = 20000
        mean_tokens = 1000.0
    """
    for data in known(facts.data_lengths):
        if data.broken:
            yield Problem(data.field, data.broken, fix="correct the file, or name the right column or file")


@facts_rule("BAT016", Severity.NOTE, needs=("data_lengths",))
def data_seen_often(run: RunSpec, facts: Facts) -> Problems:
    """Data should not be trained on more than about four times.

    for up to four epochs repeated text is nearly as good as fresh text; later epochs teach less, and are memorised

    Judged for local data of pretraining and fine-tuning. With several rows packed into one sequence there are more
    epochs than reported.

    Source: Scaling Data-Constrained Language Models, arXiv 2305.16264, s. 1.

    Bad:
        [[facts.data_lengths]]
        field = "data.sources.0.path"
        rows = 4000
        mean_tokens = 200.0
    Bad (prime-rl 2026-08 sft):
        [[facts.data_lengths]]
        field = "finetune.data_name"
        rows = 1000
    Good:
        [[facts.data_lengths]]
        field = "data.sources.0.path"
        rows = 40000
        mean_tokens = 200.0
    """
    steps = run.run.max_steps
    if prime_rl_of(run).rollout is not None or steps >= ENDLESS_STEPS:
        return
    for need in _needs(run, known(facts.data_lengths)):
        epochs = steps * need.per_step / need.available if need.available else 0.0
        if epochs > _WORTH_EPOCHS and need.available >= need.per_step:
            worth = max(1, int(_WORTH_EPOCHS * need.available / need.per_step))
            yield Problem(
                "run.max_steps",
                f"{steps} steps take {format_count(steps * need.per_step)} {need.unit}: {epochs:.1f} epochs of "
                f"{format_count(need.available)}",
                fix=f"more data, or `run.max_steps` = {worth} for {_WORTH_EPOCHS} epochs",
            )


def _needs(run: RunSpec, found: tuple[DataLengths, ...]) -> Iterator[_Need]:
    parts = prime_rl_of(run)
    measured = {data.field: data for data in found}
    if run.data.sources:
        yield from _text_need(run, measured)
    elif parts.finetune is not None:
        data, batch = measured.get("finetune.data_name"), parts.finetune.batch_sequences
        if data is not None and data.rows is not None and batch:
            text = f"`finetune.batch_sequences` {batch} takes at least as many rows"
            yield _Need("finetune.batch_sequences", batch, data.rows, "rows", text)
    elif parts.rollout is not None and parts.environments is not None and len(parts.environments.train or ()) == 1:
        batch, group = parts.rollout.batch_rollouts, parts.rollout.group_size
        data = next((data for field, data in measured.items() if field.startswith("environments.train.0.")), None)
        if data is not None and data.rows is not None and batch and group:
            text = f"`rollout.batch_rollouts` {batch} in groups of {group} takes {batch / group:g} tasks a step"
            yield _Need("rollout.batch_rollouts", batch / group, data.rows, "tasks", text)


def _text_need(run: RunSpec, measured: dict[str, DataLengths]) -> Iterator[_Need]:
    """Tokens of all sources; nothing if one of them is not measured."""
    tokens = 0.0
    for number in range(len(run.data.sources)):
        data = measured.get(f"data.sources.{number}.path")
        if data is None or data.rows is None or data.mean_tokens is None:
            return
        tokens += data.rows * data.mean_tokens
    at = "batch.global_batch_tokens" if run.batch.global_batch_tokens is not None else "batch.global_batch"
    yield _Need(at, tokens_per_step(run), tokens, "tokens", f"a step takes {format_count(tokens_per_step(run))} tokens")
