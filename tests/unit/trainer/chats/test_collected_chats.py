"""Rollouts with the templates of models: their tokens are those of fine-tuning, whatever token ends a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from torch import Tensor

from prime_train.core.errors import UserError
from prime_train.core.spans import Spans
from prime_train.environments.environment import Environment, Message, Task
from prime_train.environments.load import open_environment
from prime_train.spec.rl import TaskSource
from prime_train.trainer.chats.chat import Chat
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.chats.labels import LabelledTokens, label
from prime_train.trainer.chats.lost_parts import refuse_lost_tools
from prime_train.trainer.rl.engines.engine import Generation, GenerationRequest
from prime_train.trainer.rl.rollouts.collect import Assignment, LimitedCalls, Means, collect
from prime_train.trainer.rl.rollouts.rollout import Rollout
from tests.unit.trainer.chats.chats import LLAMA_3, PHI, load_folder, write_folder

SOURCE = TaskSource(kind="calculator", arguments={"min_numbers": 2, "max_numbers": 2})


class Speaker:
    """An engine that answers with given tokens."""

    ctx_tokens = 10_000

    def __init__(self, answers: Callable[[int], list[int]]) -> None:
        self.version = 1
        self.prompts: list[tuple[int, ...]] = []
        self._answers = answers

    def generate(self, request: GenerationRequest) -> Generation:
        tokens = tuple(self._answers(len(self.prompts)))
        self.prompts.append(request.prompt)
        assert tokens[-1] in request.stop_tokens
        assert not request.stop_tokens.intersection(tokens[:-1])
        return Generation(tokens, (0.0,) * len(tokens), "stop", 1)

    def update(self, weights: Mapping[str, Tensor], version: int) -> None: ...

    def close(self) -> None: ...


def solve(environment: Environment) -> tuple[Task, Chat]:
    task = environment.task("train", 0)
    solved = environment.demonstrate(task)
    assert solved is not None
    return task, Chat((*task.messages, *solved), task.tools, len(task.messages))


def split_answers(document: LabelledTokens) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for token, learned in zip(document.tokens, document.learned, strict=True):
        if learned:
            found[-1].append(token)
        elif found[-1]:
            found.append([])
    return [answer for answer in found if answer]


def roll_out(environment: Environment, tokenizer: ChatTokenizer, engine: Speaker) -> Rollout:
    assignment = Assignment(
        environment=environment, source=SOURCE, task=0, seed=1, answer_tokens=200, temperature=1.0, limit_s=30.0
    )
    rollout = collect(assignment, Means(engine, tokenizer, LimitedCalls(), Spans("rollouts", "")))
    assert isinstance(rollout, Rollout)
    return rollout


@pytest.mark.parametrize("name", ["built-in", "glm"])
def test_a_solved_task_has_its_tokens_of_fine_tuning(name: str, tokenizers: dict[str, ChatTokenizer]) -> None:
    environment, tokenizer = open_environment(SOURCE, 7), tokenizers[name]
    _, chat = solve(environment)
    (document,) = label(chat, tokenizer)
    answers = split_answers(document)
    rollout = roll_out(environment, tokenizer, Speaker(answers.__getitem__))
    assert (rollout.reward, rollout.turns, rollout.truncated) == (1.0, 2, False)
    length = len(rollout.tokens)
    assert (rollout.tokens, rollout.sampled) == (document.tokens[:length], document.learned[:length])


@pytest.mark.parametrize("stop", ["<|user|>", "<|endoftext|>"])
def test_another_stop_token_stays_before_the_next_message(stop: str, tokenizers: dict[str, ChatTokenizer]) -> None:
    """The tokens that the model wrote are kept, and the next message begins with its own token."""
    environment, tokenizer = open_environment(SOURCE, 7), tokenizers["glm"]
    control = tokenizer.tokenizer.control_tokens
    _, chat = solve(environment)
    answers = split_answers(label(chat, tokenizer)[0])
    engine = Speaker(lambda turn: [*answers[turn][:-1], control[stop]])
    rollout = roll_out(environment, tokenizer, engine)
    assert rollout.turns == 2
    written = len(engine.prompts[0]) + len(answers[0])
    assert rollout.tokens[written - 1 : written + 1] == (control[stop], control["<|observation|>"])
    assert rollout.sampled[written - 1 : written + 1] == (True, False)


def test_a_text_with_an_end_of_its_own_gets_one_end(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["glm"]
    control, chat = tokenizer.tokenizer.control_tokens, [Message("user", "a"), Message("assistant", "b")]
    begins = control["<|user|>"]
    ended = tokenizer.following_tokens(chat, [Message("user", "c")], stop=begins)
    for stop in (None, control["<|observation|>"], control["<|endoftext|>"]):
        assert tokenizer.following_tokens(chat, [Message("user", "c")], stop=stop) == (begins, *ended)
    assert begins not in ended


def test_a_template_without_answers_is_refused(tokenizers: dict[str, ChatTokenizer]) -> None:
    template = tokenizers["built-in"].template
    silent = type(template)(template.text.replace("{{- message.content }}", ""), "silent", {}, template.control_tokens)
    chat = [Message("user", "a"), Message("assistant", "b")]
    with pytest.raises(UserError, match="does not end an answer that has messages after it"):
        ChatTokenizer(tokenizers["built-in"].tokenizer, silent).following_tokens(chat, chat[:1], stop=None)


@pytest.mark.parametrize("template", [PHI, LLAMA_3])
def test_an_environment_whose_tools_the_model_would_not_see_is_refused(template: str, tmp_path: Path) -> None:
    tokenizer = load_folder(write_folder(tmp_path / "folder", template))
    refuse_lost_tools([open_environment(TaskSource(kind="reverse-text"), 7)], tokenizer.template)
    with pytest.raises(UserError, match=r"writes nothing of .*the tool calculate") as caught:
        refuse_lost_tools([open_environment(SOURCE, 7)], tokenizer.template)
    assert caught.value.where.startswith("calculator with tokenizer.path")


def test_calls_that_a_template_does_not_write_are_no_fault_of_rollouts(
    tmp_path: Path, tokenizers: dict[str, ChatTokenizer]
) -> None:
    """As LFM2 has it: the model writes its calls, and its tokens are kept."""
    template = tokenizers["built-in"].template.text.replace("message.tool_calls or []", "[]")
    tokenizer = load_folder(write_folder(tmp_path / "folder", template))
    refuse_lost_tools([open_environment(SOURCE, 7)], tokenizer.template)
    _, chat = solve(open_environment(SOURCE, 7))
    with pytest.raises(UserError, match="writes nothing of the call of calculate in message 2"):
        label(chat, tokenizer)
