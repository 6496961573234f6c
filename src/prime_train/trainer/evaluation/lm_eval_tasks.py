"""Opens tasks of lm-evaluation-harness and evaluates the model in training on them. Loads no data unless asked to.

lm-eval runs on every rank with all requests, and the ranks share the scoring, so that a sharded model works as well.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from yaml import YAMLError

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import install_command
from prime_train.spec import Benchmark
from prime_train.trainer import seed
from prime_train.trainer.evaluation.score import BenchmarkValue, Scorer
from prime_train.trainer.failure import first_line
from prime_train.trainer.tokenizer import LoadedTokenizer

_SEED = 1234  # of the choice of answered examples: lm_eval.defaults.DEFAULT_OTHER_SEED


# What lm-eval raises for a task file that makes no task, or whose data cannot be read.
_FAULTS = (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, YAMLError, TemplateError)


@dataclass(frozen=True, slots=True)
class LmEvalTasks:
    """The opened tasks of one benchmark, and the tokenizer as transformers loads it."""

    asked: Benchmark
    loaded: Any  # lm_eval.tasks.TaskDict
    tokenizer: Any

    def evaluate(self, scorer: Scorer) -> list[BenchmarkValue]:
        """Every finite metric of every task and group. Called by every rank."""
        from lm_eval.evaluator import evaluate

        from prime_train.trainer.evaluation.live_model import LiveModel

        before = seed.rng_state()
        for task in self.loaded["tasks"].values():
            task.set_fewshot_seed(seed=_SEED)  # each evaluation shows the same answered examples
        try:
            with _network(allowed=self.asked.download):
                found = evaluate(
                    LiveModel(scorer, self.tokenizer),
                    self.loaded,
                    limit=self.asked.examples,
                    bootstrap_iters=0,  # it would fork the trainer
                    log_samples=False,
                )
        finally:
            seed.set_rng_state(before)  # the training continues as without the evaluation
        return list(_results(found))


def _results(found: Any) -> Iterator[BenchmarkValue]:
    for name, values in found["results"].items():
        examples = int(values.get("sample_len") or 0)
        for key, value in values.items():
            metric, _, filtered = key.partition(",")
            if not filtered or metric.endswith("_stderr") or isinstance(value, str) or not math.isfinite(value):
                continue  # no metric, or none of this task
            yield BenchmarkValue(name, metric if filtered == "none" else f"{metric}/{filtered}", float(value), examples)


def open_tasks(asked: Benchmark, number: int, tokenizer: LoadedTokenizer) -> LmEvalTasks:
    """The tasks that asked.task names. Raises UserError where they, their data or lm-eval are not there."""
    where = f"eval.benchmarks.{number}"
    if find_spec("lm_eval") is None:
        why = 'kind = "lm-eval" asks the tasks of the lm-evaluation-harness'
        raise UserError("lm-eval is not installed", where, why, install_command("eval"))
    from transformers import AutoTokenizer

    with _network(allowed=asked.download):
        loaded = _load(asked, where)
    for task in loaded["tasks"].values():
        _set_shots(task, asked.shots)
    folder = tokenizer.files[0].parent
    return LmEvalTasks(asked, loaded, AutoTokenizer.from_pretrained(str(folder), local_files_only=True))


def _load(asked: Benchmark, where: str) -> Any:
    from datasets.exceptions import DatasetsError
    from lm_eval.tasks import TaskManager

    if asked.path is not None and not Path(asked.path).is_dir():
        what = f"{asked.path} is no folder"
        why = "a folder of task files is searched for the task"
        raise UserError(what, f"{where}.path", why, "name the folder that has the .yaml file of the task")
    try:
        manager = TaskManager(include_path=asked.path, include_defaults=False)
        if asked.task not in manager.all_tasks:  # reading the thousands of tasks of lm-eval itself takes seconds
            manager = TaskManager(include_path=asked.path)
        if asked.task not in manager.all_tasks:
            raise _unknown_task(asked, where, manager.all_tasks)
        return manager.load([asked.task])
    except ConnectionError as error:
        raise UserError(
            what=f"the data of {asked.task} are not on this machine: {first_line(error)}",
            where=where,
            why="an evaluation loads nothing from the network unless the config allows it",
            fix=f"{where}.download = true, or load them before the run: lm_eval --model dummy --tasks {asked.task}",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from error
    except (*_FAULTS, DatasetsError) as e:
        what = f"the task {asked.task} cannot be opened: {type(e).__name__}: {first_line(e)}"
        why = "lm-eval reads a .yaml file for each task, and then the data that it names"
        fix = f"correct the files of the task; to try it alone: lm_eval --model dummy --tasks {asked.task}"
        raise UserError(what, where, why, fix) from e


def _unknown_task(asked: Benchmark, where: str, names: list[str]) -> UserError:
    near = difflib.get_close_matches(asked.task or "", names, n=1)
    what = f"lm-eval has no task {asked.task}" + (f"; did you mean {near[0]}?" if near else "")
    why = f"it knows {len(names)} tasks and groups" + (f", with those in {asked.path}" if asked.path else "")
    return UserError(what, f"{where}.task", why, f'task = "{near[0]}"' if near else "lm_eval ls tasks")


def _set_shots(task: Any, shots: int | None) -> None:
    """As lm_eval.evaluator.simple_evaluate does: a task that sets 0 keeps it."""
    own = task.get_config("num_fewshot")
    if own != 0:
        task.set_config(key="num_fewshot", value=(own or 0) if shots is None else shots)


@contextmanager
def _network(*, allowed: bool) -> Iterator[None]:
    """While the block runs, the libraries of the Hugging Face hub use only files on this machine."""
    if allowed:
        yield
        return
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
