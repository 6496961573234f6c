"""HellaSwag: which of four endings does the model find most likely? From a local file, without lm-eval.

The endings are compared by their log-probability per token (acc_norm), as llm.c and build-nanogpt do, so their figures
compare with these; lm-eval divides by characters instead. `acc` compares the sums. Source: arXiv 1905.07830.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import parse_json
from prime_train.spec import Benchmark
from prime_train.trainer.evaluation.score import BenchmarkValue, Scorer, ScoreRequest
from prime_train.trainer.tokenizer import LoadedTokenizer

ENDINGS = 4
_FIX = "take the line out, or load the file again: hellaswag_val.jsonl of the authors has 10,042 such lines"


class Question(NamedTuple):
    """One line of the file."""

    context: str
    endings: tuple[str, ...]
    label: int  # the number of the right ending


@dataclass(frozen=True, slots=True)
class HellaSwag:
    """The tokens of all questions. `name` is that of its metrics."""

    name: str
    contexts: tuple[NDArray[np.int32], ...]
    endings: tuple[NDArray[np.int32], ...]  # ENDINGS for each context, in its order
    labels: tuple[int, ...]

    def evaluate(self, scorer: Scorer) -> list[BenchmarkValue]:
        """The fractions of right answers, by log-probability per token and by log-probability. Called by every rank."""
        requests = [
            ScoreRequest(self.contexts[number // ENDINGS].tolist(), ending.tolist())
            for number, ending in enumerate(self.endings)
        ]
        log_probs = [scored.log_prob for scored in scorer.score(requests)]
        per_token = [log_prob / len(ending) for log_prob, ending in zip(log_probs, self.endings, strict=True)]
        return [self._judge("acc_norm", per_token), self._judge("acc", log_probs)]

    def _judge(self, metric: str, scores: Sequence[float]) -> BenchmarkValue:
        chosen = np.asarray(scores).reshape(-1, ENDINGS).argmax(-1)  # (questions,); the first of equal ones
        right = chosen == np.asarray(self.labels)
        return BenchmarkValue(self.name, metric, float(right.mean()), len(right))


def open_hellaswag(asked: Benchmark, tokenizer: LoadedTokenizer, ctx_tokens: int) -> HellaSwag:
    """The questions of asked.path. Raises UserError with file and line where a line is no question."""
    path = Path(asked.path or "")
    questions = list(islice(read_questions(path), asked.examples))
    if not questions:
        raise UserError("it has no questions", str(path), why="each line is one", fix=_FIX)
    contexts = _encode(tokenizer, [question.context for question in questions])
    endings = _encode(tokenizer, [f" {ending}" for question in questions for ending in question.endings])
    for number, ending in enumerate(endings):
        if not 0 < len(ending) <= ctx_tokens:
            what = f"ending {number % ENDINGS} has {len(ending)} tokens"
            why = f"an ending has a token at least, and at most data.ctx_tokens = {ctx_tokens}"
            fix = "take the line out, or raise data.ctx_tokens"
            raise UserError(what, f"{path}, question {number // ENDINGS + 1}", why, fix)
    return HellaSwag(asked.name or asked.kind, contexts, endings, tuple(question.label for question in questions))


def _encode(tokenizer: LoadedTokenizer, texts: Sequence[str]) -> tuple[NDArray[np.int32], ...]:
    return tuple(np.asarray(tokens, dtype=np.int32) for tokens in tokenizer.encode_batch(texts))


def read_questions(path: Path) -> Iterator[Question]:
    """The questions of a .jsonl file with the keys ctx, endings and label. Raises UserError as `open_hellaswag`."""
    try:
        file = outside.open_regular(path)
    except OSError as error:
        fix = 'kind = "hellaswag" needs the path of a .jsonl file that can be read'
        raise outside.as_user_error(error, f"eval.benchmarks path = {str(path)!r}", fix) from None
    with file:
        for number, line in enumerate(iter(lambda: file.readline(outside.LINE_BYTES), b""), start=1):
            if not line.strip():
                continue
            question = _read(line)
            if isinstance(question, str):
                why = "a question has ctx (text), endings (four texts) and label (the number of the right one, from 0)"
                raise UserError(what=question, where=f"{path}:{number}", why=why, fix=_FIX)
            yield question


def _read(line: bytes) -> Question | str:
    """The question of a line, or what is wrong with it."""
    try:
        row: Any = parse_json(line)
    except ValueError as error:
        return f"no line of JSON: {error}"
    if not isinstance(row, dict):
        return "no JSON object"
    context, endings, label = row.get("ctx"), row.get("endings"), row.get("label")
    if not isinstance(context, str) or not context.strip():
        return "ctx is no text"
    if not isinstance(endings, list) or len(endings) != ENDINGS:
        return f"endings are no list of {ENDINGS} texts"
    if not all(isinstance(ending, str) and ending.strip() for ending in endings):
        return "an ending is no text"
    if isinstance(label, str) and label.isdecimal():
        label = int(label)  # as the copy on the Hugging Face hub writes it
    if type(label) is not int or not 0 <= label < ENDINGS:
        return f"label is {str(label)[:40]!r}, not 0, 1, 2 or 3"
    return Question(context, tuple(endings), label)
