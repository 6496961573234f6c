"""Chats that the trainer refuses or has nothing to learn from. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.core.units import counted
from prime_train.rules.rule import Problems, facts_rule, if_known, known
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_LEAST_CHATS = 2  # of a source: one for training, one held out


@facts_rule("DAT006", Severity.ERROR, needs=("chat_trials",), uses=("data_lengths", "tokenizer_folder"))
def chat_refused(_run: RunSpec, facts: Facts) -> Problems:
    """The trainer must accept the first chats: their roles, and that the chat template writes all of them.

    the trainer ends at the first chat that it refuses, after the queue and the load of the model

    A template that does not know tools leaves out calls, results and tools. As many chats of local files are tried as
    a second allows, with the tokenizer folder of the run.

    Source: trainer/chats/labels.py, trainer/chats/lost_parts.py.

    Bad (sft):
        [tokenizer]
        path = "models/phi-3"
        [[facts.chat_trials]]
        field = "data.sources.0.path"
        chats = 11
        where = "chats.jsonl: record 12"
        what = "the chat template writes nothing of the call of get_weather in message 2"
        why = "the model would learn an empty answer in the place of the call"
        fix = "use a template that writes tools, calls and results"
    Good (sft):
        [tokenizer]
        path = "models/qwen3-0.6b"
        [[facts.chat_trials]]
        field = "data.sources.0.path"
        chats = 1200
    """
    folder = if_known(facts, "tokenizer_folder")
    if folder is not None and (folder.problem or folder.has_chat_template is False):
        return  # TOK001 and TOK005 report it
    broken = {data.field for data in if_known(facts, "data_lengths") or () if data.broken}  # BAT020 reports it
    for trial in known(facts.chat_trials):
        if trial.what and trial.field not in broken:
            yield Problem(trial.field, f"{trial.where}: {trial.what}", fix=trial.fix, why=trial.why)


@facts_rule("DAT007", Severity.ERROR, needs=("chat_trials",))
def chats_without_labels(run: RunSpec, facts: Facts) -> Problems:
    """Some training chats and some held-out chats must have an answer that begins within `data.ctx_tokens`.

    a longer chat keeps its beginning, and the trainer ends where nothing is left to learn or to measure the loss on

    Judged for chats in local files that can all be tokenised within a second, with the tokenizer folder of the run.

    Source: trainer/chats/chat_sources.py.

    Bad (sft):
        [tokenizer]
        path = "models/qwen3-0.6b"
        [[facts.chat_trials]]
        field = "data.sources.0.path"
        chats = 40
        is_whole = true
        learned_train = 3
        least_ctx_tokens = 1900
    Bad (sft):
        [tokenizer]
        path = "models/qwen3-0.6b"
        [[facts.chat_trials]]
        field = "data.sources.0.path"
        chats = 1
        is_whole = true
    Good (sft):
        [tokenizer]
        path = "models/qwen3-0.6b"
        [[facts.chat_trials]]
        field = "data.sources.0.path"
        chats = 40
        is_whole = true
        learned_train = 30
        learned_held_out = 2
        least_ctx_tokens = 80
    """
    trials = [trial for trial in known(facts.chat_trials) if trial.is_whole and not trial.what]
    for trial in trials:
        if trial.chats < _LEAST_CHATS:
            yield Problem(trial.field, f"it has {counted(trial.chats, 'chat')}", fix="at least two: one is held out")
    is_known = len(trials) == len(run.data.sources) and all(trial.chats >= _LEAST_CHATS for trial in trials)
    if not trials or not is_known:
        return  # another source may have what one lacks
    ctx_tokens = run.data.ctx_tokens
    parts = {"held-out": [trial.learned_held_out for trial in trials], "training": [t.learned_train for t in trials]}
    drawn_alone = run.data.sampling_probs is not None
    for part, learned in parts.items():
        if not any(learned) or (part == "training" and drawn_alone and not all(learned)):
            needed = [trial.least_ctx_tokens for trial in trials]
            enough = max((tokens for tokens in needed if tokens is not None), default=None)
            fix = "chats with messages of the assistant" if enough is None else f"at least `data.ctx_tokens` = {enough}"
            yield Problem(
                "data.ctx_tokens", f"no {part} chat has an answer among its first {ctx_tokens} tokens", fix=fix
            )
            return
