"""The model in training behind the interface of lm-evaluation-harness. Scores nothing itself.

Text becomes tokens as in lm_eval.models.huggingface.HFLM, with the tokenizer as transformers loads it, so a task gives
the same values as `lm_eval --model hf` on the exported model. Every rank calls every method with the same requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text

from prime_train.core.errors import UserError
from prime_train.trainer import parallel
from prime_train.trainer.evaluation.evaluate import Sampling, generate
from prime_train.trainer.evaluation.score import Scorer, ScoreRequest

_MAX_NEW_TOKENS = 256  # of a task that sets no limit, as in HFLM
_TOKENS_AT_ONCE = 16  # between two looks for a stop sequence


class LiveModel(TemplateLM):  # type: ignore[misc]  # lm-eval is not installed where mypy runs
    """`tokenizer` is that of transformers."""

    def __init__(self, scorer: Scorer, tokenizer: Any) -> None:
        super().__init__()
        self.scorer = scorer
        self.tokenizer = tokenizer

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context."""
        first = self.tokenizer.bos_token_id
        return self.eot_token_id if first is None else int(first)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The tokens of a text. Without `add_special_tokens` the tokenizer decides, except after a written prefix."""
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        options = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(string, **options))

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return list(super().loglikelihood(requests, disable_tqdm=disable_tqdm))

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """(log-probability, whether greedy decoding gives the continuation) of each (texts, context, continuation)."""
        for _texts, _context, continuation in requests:
            if not 0 < len(continuation) <= self.scorer.ctx_tokens:
                what = f"a continuation of a task has {len(continuation)} tokens"
                why = f"it has one token at least, and at most data.ctx_tokens = {self.scorer.ctx_tokens}"
                raise UserError(what, "eval.benchmarks", why, "leave that task out, or raise data.ctx_tokens")
        scored = self.scorer.score([ScoreRequest(context, continuation) for _, context, continuation in requests])
        return [(one.log_prob, one.is_greedy) for one in scored]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """The log-probability of each whole text, in windows of ctx_tokens that predict each token once."""
        windows: list[tuple[None, list[int], list[int]]] = []
        ends: list[int] = []
        for request in requests:
            (text,) = request.args
            pairs = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.scorer.ctx_tokens,
                context_len=1,
            )
            windows += [(None, *utils.make_disjoint_window(pair)) for pair in pairs]
            ends.append(len(windows))
        log_probs = [log_prob for log_prob, _ in self._loglikelihood_tokens(windows)]
        return [sum(log_probs[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """The most probable continuation of each context, up to a stop sequence or the limit of the task."""
        training = self.scorer.training
        # The ranks of a sharded model compute every token together, and all of them get every answer.
        alone = training.world.size == 1 or parallel.is_sharded(training.model)
        rank, ranks = (0, 1) if alone else (training.world.rank, training.world.size)
        asked = [self._plan(*request.args) for request in requests]
        answers: list[list[int]] = [[] for _ in asked]
        mine = sorted(range(len(asked)), key=lambda number: (-len(asked[number][0]), number))[rank::ranks]
        rows = max(1, self.scorer.batch_tokens // self.scorer.ctx_tokens)
        for start in range(0, len(mine), rows):
            portion = mine[start : start + rows]
            self._answer([asked[number] for number in portion], [answers[number] for number in portion])
            self.scorer.report(start + len(portion), len(mine))
        if not alone:
            answers = self._collect(answers, max((limit for _, _, limit in asked), default=0))
        texts = [self.tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
        return [postprocess_generated_text(text, until, None) for text, (_, until, _) in zip(texts, asked, strict=True)]

    def _plan(self, context: str, settings: dict[str, Any]) -> tuple[list[int], list[str], int]:
        """(tokens of the context, stop sequences, most new tokens)."""
        options = dict(normalize_gen_kwargs(settings, _MAX_NEW_TOKENS))
        limit, ctx_tokens = int(options["max_gen_toks"]), self.scorer.ctx_tokens
        if options.get("do_sample") or limit >= ctx_tokens:
            sampled = "the task draws its answers at random" if options.get("do_sample") else ""
            raise UserError(
                what=sampled or f"the task generates up to {limit} tokens",
                where="eval.benchmarks",
                why="an evaluation takes the most probable tokens, so that its values can be compared"
                if sampled
                else f"context and answer have at most data.ctx_tokens = {ctx_tokens} tokens",
                fix="leave that task out" if sampled else "leave that task out, or raise data.ctx_tokens",
            )
        until = handle_stop_sequences(options.get("until"), eos=self.tokenizer.decode(self.eot_token_id))
        tokens = self.tok_encode(context)[-(ctx_tokens - limit) :]
        return tokens or [self.prefix_token_id], until, limit

    def _answer(self, asked: Sequence[tuple[list[int], list[str], int]], answers: Sequence[list[int]]) -> None:
        """Append the answer to each context, until each has ended."""
        training = self.scorer.training
        open_rows = list(range(len(asked)))
        while open_rows:
            sampling = Sampling(
                new_tokens=_TOKENS_AT_ONCE,
                ctx_tokens=self.scorer.ctx_tokens,
                temperature=0.0,
                seed=0,
                stop_tokens=frozenset({self.eot_token_id}),
            )
            begun = [[*asked[row][0], *answers[row]] for row in open_rows]
            with training.device.autocast():
                added = generate(parallel.unwrap(training.model), begun, sampling, training.device.torch)
            ended = set()
            for row, tokens in zip(open_rows, added, strict=True):
                _, until, limit = asked[row]
                answers[row].extend(tokens[: limit - len(answers[row])])
                text = self.tokenizer.decode(answers[row], skip_special_tokens=True)
                stopped = any(stop and stop in text for stop in until)
                if stopped or len(tokens) < _TOKENS_AT_ONCE or len(answers[row]) >= limit:
                    ended.add(row)
            open_rows = [row for row in open_rows if row not in ended]

    def _collect(self, answers: Sequence[list[int]], longest: int) -> list[list[int]]:
        """The answers of all ranks; each rank has those of its own share."""
        world = self.scorer.training.world
        table = torch.zeros(len(answers), longest, dtype=torch.int64, device=self.scorer.training.device.torch)
        for row, answer in enumerate(answers):
            table[row, : len(answer)] = torch.tensor(answer, dtype=torch.int64) + 1  # 0 = no token
        return [[token - 1 for token in row if token] for row in world.sum(table).tolist()]
