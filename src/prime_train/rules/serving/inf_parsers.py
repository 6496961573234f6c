"""The server's parsers of tool calls and of reasoning against the model that it serves. Pure."""

from __future__ import annotations

import re

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule
from prime_train.spec import RunSpec

# Families of models, by their names. A name with several, such as a distillation, is not judged.
_FAMILIES = {
    "qwen": r"qwen|qwq",
    "llama": r"llama",
    "mistral": r"mistral|mixtral|ministral|magistral|devstral",
    "glm": r"glm",
    "deepseek": r"deepseek",
    "minimax": r"minimax",
    "kimi": r"kimi|moonlight",
    "gpt-oss": r"gpt[-_]?oss",
    "phi": r"\bphi",
    "granite": r"granite",
    "gemma": r"gemma",
    "seed": r"seed[-_]?oss",
    "hunyuan": r"hunyuan",
}
# The families whose format a parser reads, by the start of its name; a parser that is not here is not judged.
# Source: docs.vllm.ai, Tool Calling and Reasoning Outputs, vLLM 0.27.
_TOOL_PARSERS = {
    "qwen3_": ("qwen",),
    "llama": ("llama",),
    "mistral": ("mistral",),
    "glm4": ("glm",),
    "deepseek_v3": ("deepseek",),
    "minimax": ("minimax",),
    "kimi_k2": ("kimi",),
    "openai": ("gpt-oss",),
    "phi4_mini_json": ("phi",),
    "granite": ("granite",),
    "gemma": ("gemma",),
    "functiongemma": ("gemma",),
    "seed_oss": ("seed",),
    "hunyuan": ("hunyuan",),
}
_REASONING_PARSERS = {
    "qwen3": ("qwen",),
    "deepseek_r1": ("deepseek", "qwen"),
    "deepseek_v3": ("deepseek",),
    "glm45": ("glm",),
    "minimax": ("minimax",),
    "kimi_k2": ("kimi",),
    "openai_gptoss": ("gpt-oss",),
    "mistral": ("mistral",),
    "granite": ("granite",),
    "hunyuan": ("hunyuan",),
    "seed_oss": ("seed",),
}
_CODER = r"(?i)qwen3[-_.]?coder"  # it writes calls as XML, and other Qwen models as JSON
_NOT_HERMES = ("glm", "deepseek", "minimax", "kimi", "gpt-oss", "mistral")


@rule("INF004", Severity.WARNING)
def parser_of_another_family(run: RunSpec) -> Problems:
    """The parsers of tool calls and reasoning must be those of the model's family.

    another family writes its calls differently: no call is recognised, and each turn that needs a tool fails

    Judged by the name of the model. `hermes`, the default of many files, counts only with automatic tool choice.

    Source: docs.vllm.ai, Tool Calling and Reasoning Outputs; QwenLM/Qwen3-Coder issue 537 (hermes fails on it).

    Bad (prime-rl 2026-08):
        [inference.vllm]
        tool_call_parser = "llama3_json"
    Bad (prime-rl 2026-08):
        [inference.vllm]
        reasoning_parser = "glm45"
    Good (prime-rl 2026-08):
        [inference.vllm]
        tool_call_parser = "hermes"
        reasoning_parser = "deepseek_r1"
    """
    inference = run.inference
    if inference is None or inference.model_name is None:
        return
    model = inference.model_name
    families = [name for name, pattern in _FAMILIES.items() if re.search(pattern, model, re.IGNORECASE)]
    if len(families) != 1:
        return
    for name, known in (("tool_call_parser", _TOOL_PARSERS), ("reasoning_parser", _REASONING_PARSERS)):
        parser = getattr(inference, name) or ""
        served = next((of for start, of in known.items() if parser.startswith(start)), None)
        if parser == "hermes" and inference.auto_tool_choice and name == "tool_call_parser":
            foreign = families[0] in _NOT_HERMES or bool(re.search(_CODER, model))
        else:
            foreign = served is not None and families[0] not in served
        if foreign:
            fix = f"the parser of {families[0]}, as `prime-train verify-model {model}` names it"
            yield Problem(f"inference.{name}", f'"{parser}" does not read what {model} writes', fix=fix)
