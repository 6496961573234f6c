"""[inference] of a run.toml, the vLLM server that prime-train starts, and parsers of tool calls and reasoning. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prime_train.config import run_toml
from prime_train.config.parsed_config import Fault, Reading
from prime_train.config.prime_rl.suggest import vllm_arguments
from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, file_rule, rule, values_of
from prime_train.spec import RunSpec
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import KeyPath, dotted

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


# vLLM's argument -> the key of [inference] that sets it.
_OWN = {
    "model": "model",
    "served_model_name": "served_name",
    "host": "host",
    "port": "port",
    "max_model_len": "ctx_tokens",
    "dtype": "dtype",
    "tensor_parallel_size": "tensor_parallel",
    "gpu_memory_utilization": "gpu_memory_fraction",
    "enforce_eager": "enforce_eager",
}
_SSL = ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs")
# Arguments with which the server cannot be monitored, or differs from this file -> (what, fix).
_REFUSED = {
    "api_key": ("a key in an argument can be read by every user of the machine", "export VLLM_API_KEY before the run"),
    "kv_cache_memory_bytes": ("`server.kv_cache_gib` sets it, in GiB", "set `server.kv_cache_gib`"),
    "uds": ("a server behind a socket file cannot be monitored", "take it out; `server.port` sets the port"),
    "config": ("the settings in that file are not judged", "write its settings here"),
    "headless": ("a server without its front end answers no request", "take it out"),
    "disable_log_stats": ("without its counters a dead engine looks like an idle one", "take it out"),
    **dict.fromkeys(_SSL, ("the supervisor reaches the server over http, on this machine only", "take it out")),
}


@file_rule("INF001", Severity.ERROR)
def argument_out_of_place(reading: Reading) -> Iterator[Fault]:
    """[inference.arguments] must not repeat a key of [inference], nor hide the server from its supervisor.

    vLLM uses the last of two values, so the server that runs differs from the one that was checked and estimated

    Source: vLLM, arguments of its OpenAI server (vllm/entrypoints/openai/cli_args.py).

    Bad:
        [inference]
        model = "./models/mine"
        [inference.arguments]
        max-model-len = 4096
    Bad:
        [inference]
        model = "./models/mine"
        [inference.arguments]
        disable_log_stats = true
    Good:
        [inference]
        model = "./models/mine"
        ctx_tokens = 4096
        [inference.arguments]
        max-num-seqs = 64
    """
    for path, value in _arguments(reading):
        name, argument = dotted(path), str(path[-1]).replace("-", "_")
        if argument in _OWN:
            key = f"inference.{_OWN[argument]}"
            patch = {name: None} if reading.sets(f"server.{_OWN[argument]}") else {name: None, key: value}
            yield Fault("INF001", path, f"{key} sets the same", f"set {key} in its place", patch)
        elif argument in _REFUSED:
            what, fix = (text.replace("`server.", "inference.").replace("`", "") for text in _REFUSED[argument])
            yield Fault("INF001", path, what, fix, hidden=argument == "api_key")


@file_rule("INF002", Severity.WARNING)
def argument_unknown_to_vllm(reading: Reading) -> Iterator[Fault]:
    """vLLM should know each of [inference.arguments].

    vLLM ends half a minute into its start if it does not know an argument

    Source: registry/vllm_arguments.json, the engine and server arguments of vLLM 0.32.0.

    Bad:
        [inference]
        model = "./models/mine"
        [inference.arguments]
        max_num_seq = 64
    Good:
        [inference]
        model = "./models/mine"
        [inference.arguments]
        max_num_seqs = 64
    """
    written = list(_arguments(reading))
    if not written:
        return
    known = vllm_arguments()
    for path, value in written:
        argument = str(path[-1]).replace("-", "_")
        if argument in known or argument in _OWN or argument in _REFUSED or argument.split(".")[0] in known:
            continue
        what = f"vLLM 0.32 has no argument --{argument.replace('_', '-')}"
        meant = nearest(argument, sorted(known))
        if meant is None:
            yield Fault("INF002", path, what, "take it out, or see --help of the installed version")
        else:
            there = (*path[:-1], meant)
            patch = {dotted(path): None, dotted(there): value}
            yield Fault("INF002", path, f"{what}; did you mean {meant}?", f"{dotted(there)}, or take it out", patch)


def _arguments(reading: Reading) -> Iterator[tuple[KeyPath, Any]]:
    """Key path and value of each of [inference.arguments], as the file writes it."""
    server = reading.document.values.get("inference") if reading.dialect == run_toml.DIALECT else None
    given = server.get("arguments") if isinstance(server, dict) else None
    if isinstance(given, dict):
        yield from ((("inference", "arguments", name), value) for name, value in given.items())


@rule("INF003", Severity.WARNING)
def fraction_without_effect(run: RunSpec) -> Problems:
    """A server takes kv_cache_gib or gpu_memory_fraction, not both.

    vLLM sizes its cache by the bytes it is given, and ignores the fraction

    Source: vLLM 0.32, CacheConfig.kv_cache_memory_bytes.

    Bad:
        [inference]
        model = "./models/mine"
        kv_cache_gib = 8.0
        gpu_memory_fraction = 0.9
    Good:
        [inference]
        model = "./models/mine"
        gpu_memory_fraction = 0.9
    """
    if both := values_of(run, "server.gpu_memory_fraction", "server.kv_cache_gib"):
        what = f"{both[0]:g} has no effect beside `server.kv_cache_gib` {both[1]:g}"
        yield Problem("server.gpu_memory_fraction", what, fix="take one of the two out")
