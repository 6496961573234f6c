"""The tokens that `validate` counts in a prompt before a tokenizer exists are not more than those of the real one."""

from __future__ import annotations

from typing import Any

import pytest

from prime_train import spec
from prime_train.environments.load import open_environment
from prime_train.rules.data.prompt_length import find_prompts
from prime_train.spec import RunSpec
from prime_train.spec.rl import TaskSource
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer

_LONG: dict[str, dict[str, Any]] = {
    "reverse-text": {"min_letters": 80, "max_letters": 80},
    "sort-digits": {"min_digits": 80, "max_digits": 80},
}


@pytest.mark.parametrize("vocab_size", [276, 300, 320, 1024])
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [("reverse-text", {}), ("sort-digits", {}), ("calculator", {}), *_LONG.items()],
    ids=["reverse-text", "sort-digits", "calculator", "long reverse-text", "long sort-digits"],
)
def test_no_prompt_has_fewer_tokens_than_validate_counts(kind: Any, arguments: dict[str, Any], vocab_size: int) -> None:
    source = TaskSource(kind=kind, arguments=arguments)
    run = RunSpec(
        run=spec.Run(name="tiny", kind="rl", max_steps=1),
        data=spec.Data(sources=()),
        tokenizer=spec.Tokenizer(vocab_size=vocab_size),
        tasks=(source,),
    )
    (counted,) = find_prompts(run)
    tokenizer, environment = load_chat_tokenizer(run), open_environment(source, run.run.seed)
    tasks = [environment.task("train", number) for number in range(32)]
    assert counted.tokens <= max(len(tokenizer.prompt_tokens(task.messages, task.tools)) for task in tasks)
