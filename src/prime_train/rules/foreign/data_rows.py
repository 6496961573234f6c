"""The rows of a training's own data file, where it is there and small: whether they make a step. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.config.foreign.follow import find_file
from prime_train.config.foreign.values import MOST_BYTES, ForeignPart
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core import outside
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule


@file_rule("TTU013", Severity.ERROR)
def fewer_rows_than_a_step(reading: Reading) -> Iterator[Fault]:
    """A torchtune training has at least as many rows as one step takes.

    the last batch is dropped, so an epoch has no step, and the run ends at once without having trained

    A file of JSON or JSON Lines is judged if it is there. Packing makes rows fewer, never more.

    Source: torchtune@bd2a0fc7c:recipes/full_finetune_single_device.py (drop_last, steps per epoch); torchtune#1714.

    Bad:
        # file torchtune.yaml
        model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
        tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: t.model, max_seq_len: 2048}
        dataset: {_component_: torchtune.datasets.chat_dataset, source: json, data_files: rows.jsonl}
        batch_size: 4
        gradient_accumulation_steps: 8
        # file rows.jsonl
        {"messages": []}
        {"messages": []}
    Good:
        # file torchtune.yaml
        model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
        tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: t.model, max_seq_len: 2048}
        dataset: {_component_: torchtune.datasets.chat_dataset, source: json, data_files: rows.jsonl}
        batch_size: 1
        gradient_accumulation_steps: 2
        # file rows.jsonl
        {"messages": []}
        {"messages": []}
    """
    for part in reading.foreign or ():
        dataset = part.values.get("dataset") if part.format == "torchtune" else None
        named = dataset.get("data_files") if isinstance(dataset, dict) else None
        rows = _count_rows(named, part) if isinstance(named, str) else None
        batch = None if rows is None else _step_rows(reading)
        if rows is not None and batch is not None and rows < batch:
            what = f"{named} has {rows} rows, and a step takes at least {batch}"
            fix = "lower batch_size or gradient_accumulation_steps"
            yield Fault("TTU013", (*part.at, "batch_size"), what, fix, document=part.document)


def _step_rows(reading: Reading) -> int | None:
    """The rows of a step over the GPUs that are known; None if a number is open."""
    from prime_train.config.foreign.recipe.draft import to_recipe  # here, because few files have their data beside them

    draft = to_recipe(reading.foreign or ())
    if draft is None or not draft.recipe.micro_batch or not draft.recipe.micro_batches_per_step:
        return None
    return draft.recipe.micro_batch * draft.recipe.micro_batches_per_step * (draft.recipe.gpus or 1)


def _count_rows(name: str, part: ForeignPart) -> int | None:
    """The rows of a file of JSON or JSON Lines; None for any other file, or one that is not there or large."""
    path = find_file(name, part.document.path) if name.endswith((".json", ".jsonl")) and not part.moved else None
    if path is None:
        return None
    try:
        text = outside.read_text(path, MOST_BYTES)
        if text.lstrip().startswith("["):
            rows = outside.parse_json(text)
            return len(rows) if isinstance(rows, list) else None
    except (OSError, ValueError):
        return None
    return sum(bool(line.strip()) for line in text.splitlines())
