"""What an environment does to a step: its turns, its tools, its rollouts and their lengths. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from prime_train.registry.known import known_environment, known_environments

_ANSWER_TOKENS = {"single": 2048, "multi": 1024}
_SHORT_TOKENS = 256  # of an answer to a built-in environment: a word, some digits, a call or a number
_TURNS = {"single": 1, "multi": 8}
_PROMPT_TOKENS = 512  # what `estimate` takes where nothing is known
_MARGIN_TOKENS = 512  # chat template and schemas of tools: rule LEN001
LEAST_ANSWER_TOKENS = 128
_GROUP = 16  # DeepSeekMath (arXiv 2402.03300, s. 4.2) samples 64 of a question; published prime-rl configs 8 to 16
_ROLLOUTS = {"single": 128, "multi": 64}
_AT_ONCE = {"none": 128, "local": 64, "sandbox": 32, "service": 32}


Turns = Literal["single", "multi"]
Executor = Literal["none", "local", "sandbox", "service"]
TURNS: tuple[Turns, ...] = ("single", "multi")
EXECUTORS: tuple[Executor, ...] = ("none", "local", "sandbox", "service")


class Workload(NamedTuple):
    """An environment as it loads a run. `kind` is that of [[tasks]]; `id` the taskset of verifiers, else "".

    `is_described`: it is known how it works; else it counts as one turn without tools.
    `prompt_tokens` is None if it is not known.
    """

    kind: str
    id: str
    turns: Turns = "single"
    tools: bool = False
    executor: Executor = "none"
    prompt_tokens: int | None = None
    answer_tokens: int = _ANSWER_TOKENS["single"]
    is_described: bool = True

    @property
    def max_turns(self) -> int:
        return _TURNS[self.turns]

    @property
    def ctx_tokens(self) -> int:
        """Tokens of the longest rollout: prompt, answers and the marks of a chat around them, in steps of 256."""
        whole = (self.prompt_tokens or _PROMPT_TOKENS) + self.answer_tokens * min(self.max_turns, 4) + _MARGIN_TOKENS
        return -(-whole // 256) * 256

    def limit_answer(self, ctx_tokens: int) -> int:
        """Tokens of one answer in a sequence of `ctx_tokens`, beside the prompt."""
        room = ctx_tokens - (self.prompt_tokens or _PROMPT_TOKENS) - _MARGIN_TOKENS
        return min(self.answer_tokens, max(LEAST_ANSWER_TOKENS, room))

    @property
    def least_ctx_tokens(self) -> int:
        """The shortest sequence with room for the prompt and a short answer."""
        return (self.prompt_tokens or _PROMPT_TOKENS) + _MARGIN_TOKENS + LEAST_ANSWER_TOKENS

    @property
    def rollouts(self) -> int:
        return _ROLLOUTS[self.turns]

    @property
    def group_size(self) -> int:
        return _GROUP if self.turns == "single" else _GROUP // 2

    @property
    def concurrency(self) -> int:
        """Rollouts at once: as many as a step has, unless calls of tools wait for this machine or for another one."""
        return min(self.rollouts, _AT_ONCE[self.executor])

    @property
    def rollout_limit_s(self) -> float:
        return 1800.0 if self.executor in ("sandbox", "service") else 300.0

    @property
    def words(self) -> str:
        """Example: "multi-turn, tools in a sandbox"."""
        where = {"none": "", "local": " on this machine", "sandbox": " in a sandbox", "service": " of a service"}
        tools = f"tools{where[self.executor]}" if self.tools or self.executor != "none" else "no tools"
        return f"{self.turns}-turn, {tools}"


_BUILT_IN = {
    "reverse-text": Workload("reverse-text", "", prompt_tokens=128, answer_tokens=_SHORT_TOKENS),
    "sort-digits": Workload("sort-digits", "", prompt_tokens=128, answer_tokens=_SHORT_TOKENS),
    "calculator": Workload("calculator", "", "multi", True, "local", 256, _SHORT_TOKENS),
}


def find_workload(name: str) -> Workload | None:
    """The workload of a built-in environment, or of one that the registry describes; None for any other."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    known = known_environment(name)
    if known is None:
        return None
    answer_tokens = _ANSWER_TOKENS[known.turns]
    return Workload("verifiers", name, known.turns, known.tools, known.executor, known.prompt_tokens, answer_tokens)


def environment_names() -> list[str]:
    """Every environment that `find_workload` knows, the built-in ones first."""
    return [*_BUILT_IN, *(name for known in known_environments() for name in known.names)]
