"""Checks who can train and who can serve a model: the bundled trainer, transformers, prime-rl, vLLM. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train import model_registry
from prime_train.architecture import KNOWN_MODEL_TYPES
from prime_train.facts.architectures import Installed
from prime_train.facts.facts import NotKnown
from prime_train.verify.check import Check, failure, not_known, ok, warning
from prime_train.verify.config import Config

_NO_TRANSFORMERS = "pip install a newer transformers into the run's environment"


class Stack(NamedTuple):
    """What the model is to run with: an interpreter's packages, and the vLLM that was asked for, "" for that one."""

    installed: Installed | NotKnown
    vllm: str = ""

    @property
    def here(self) -> Installed | None:
        return self.installed if isinstance(self.installed, Installed) else None


def check_bundled(config: Config) -> Check:
    """Whether `prime-train run` itself computes it: text-only models of the types it has code for."""
    if config.model_type in KNOWN_MODEL_TYPES and not config.sees:
        return ok("bundled-trainer", f"{config.model_type} is one of those it computes")
    return warning(
        "bundled-trainer",
        f"{config.model_type or 'no model_type'}: it computes {' and '.join(KNOWN_MODEL_TYPES)} only",
        "pretraining and SFT of this model take another trainer",
        "use prime-rl for it, or a Llama or Qwen3 model",
    )


def check_transformers(config: Config, stack: Stack) -> Check:
    package = model_registry.transformers_types()
    here = stack.here
    span = package.known.get(config.model_type)
    since = f"known since {span.first}" if span else f"not known to {package.versions[-1]}"
    if here is not None and here.has_transformers:
        told = f"{config.model_type} in transformers {here.transformers} of {here.python}"
        if config.model_type in here.transformers_types:
            return ok("transformers", told)
        if config.remote_code:
            return _remote("transformers", told, config)
        return failure(
            "transformers",
            f"no {told}; {since}",
            "AutoConfig refuses a model_type that it does not know",
            f"pip install 'transformers>={span.first}'" if span else _NO_TRANSFORMERS,
        )
    if span is None and config.remote_code:
        return _remote("transformers", f"{config.model_type}, {since}", config)
    if span is None:
        return failure("transformers", f"{config.model_type} is {since}", "AutoConfig refuses it", _NO_TRANSFORMERS)
    if span.last:
        return warning(
            "transformers",
            f"{config.model_type} was known from {span.first} to {span.last}",
            "a newer transformers has dropped it",
            f"pip install 'transformers<={span.last}'",
        )
    return ok("transformers", f"{config.model_type} is {since}")


def _remote(check_id: str, told: str, config: Config) -> Check:
    return warning(
        check_id,
        f"only through code of its own ({', '.join(config.remote_code)}): {told}",
        "that code runs with your rights, and changes when its author changes it",
        "read it, pin a revision, then set trust_remote_code = true",
    )


class _PrimeRl(NamedTuple):
    """What a prime-rl trains: the one that is installed, else that of the table."""

    name: str
    types: frozenset[str]
    vision_types: frozenset[str]
    takes_others: bool


def _prime_rl(here: Installed | None) -> _PrimeRl:
    if here is not None and here.has_prime_rl:
        told = f"prime-rl {here.prime_rl} of {here.python}"
        return _PrimeRl(told, here.prime_rl_types, here.prime_rl_vision_types, here.prime_rl_takes_others)
    known, sees = model_registry.prime_rl_types(), model_registry.prime_rl_vision_types()
    return _PrimeRl("prime-rl of 2026-08", known, sees, takes_others=True)


def check_prime_rl(config: Config, transformers: Check, stack: Stack) -> Check:
    """Whether prime-rl trains it: with code of its own, else through transformers, as `impl = "auto"` chooses."""
    prime_rl = _prime_rl(stack.here)
    if config.sees:
        if config.model_type in prime_rl.vision_types:
            return ok("prime-rl", f"{config.model_type} is one of the vision-language models of {prime_rl.name}")
        return warning(
            "prime-rl",
            f"{config.model_type} is none of the vision-language models that {prime_rl.name} lists "
            f"({', '.join(sorted(prime_rl.vision_types)) or 'none'})",
            "it does not know where that model's decoder and its vision encoder lie",
            "name both with model.vlm.vision_encoder_attr and model.vlm.language_model_attr, or take a listed model",
        )
    if config.model_type in prime_rl.types:
        return ok("prime-rl", f"{prime_rl.name} has code of its own for {config.model_type}")
    if transformers.outcome == "failure" or not prime_rl.takes_others:
        why = "it takes no model through transformers" if not prime_rl.takes_others else transformers.what
        fix = transformers.fix or f"take a model that it has code for: {', '.join(sorted(prime_rl.types))}"
        return failure("prime-rl", f"{prime_rl.name} has no code for {config.model_type}", why, fix)
    # Later revisions of its trainer/model.py raise "has no PrimeRL model implementation" instead.
    return warning(
        "prime-rl",
        f'{config.model_type} goes through transformers (impl = "hf") in {prime_rl.name}',
        "no expert or context parallelism, and releases after 2026-08 leave that way out",
        "expect it to be slower; for MoE take a model that prime-rl has code for",
    )


def check_vllm(config: Config, stack: Stack) -> Check:
    if not config.architecture:
        return failure(
            "vllm",
            "config.json names no architecture",
            "vLLM finds its code by it",
            'add "architectures": ["..."] to config.json, as the model it came from has it',
        )
    here = stack.here
    if not stack.vllm and here is not None and here.has_vllm:
        return _installed_vllm(config, here)
    return _table_vllm(config, stack.vllm)


def _installed_vllm(config: Config, here: Installed) -> Check:
    name, told = config.architecture, f"vLLM {here.vllm} of {here.python}"
    if name in here.vllm_architectures:
        return ok("vllm", f"{name} in {told}")
    if name in here.vllm_gone:
        return _dropped(name, told, here.vllm_gone[name])
    since = model_registry.vllm_architectures().known.get(name)
    if since is None and config.model_type in here.transformers_types:
        return _through_transformers(name, told)
    return failure(
        "vllm",
        f"{name} is not in {told}" + (f"; known since {since.first}" if since else ""),
        "vLLM refuses to start: Model architectures are not supported for now",
        f"pip install 'vllm>={since.first}'" if since else "serve another model, or wait for a vLLM that knows it",
    )


def _table_vllm(config: Config, version: str) -> Check:
    package, name = model_registry.vllm_architectures(), config.architecture
    span, gone = package.known.get(name), model_registry.vllm_gone(name)
    newest = package.versions[-1]
    asked = version or newest
    knows = package.knows(name, asked)
    told = f"vLLM {asked}" if version else f"vLLM {newest} (none is installed here: from the table)"
    if knows:
        return ok("vllm", f"{name} in {told}, known since {span.first if span else ''}")
    if gone and knows is False and (span is None or span.last):
        return _dropped(name, told, gone)
    if knows is False and span is not None:
        return failure(
            "vllm",
            f"{name} is not in {told}; known since {span.first}",
            "vLLM refuses to start: Model architectures are not supported for now",
            f"pip install 'vllm>={span.first}'",
        )
    if span is None and knows is False and model_registry.transformers_types().known.get(config.model_type):
        return _through_transformers(name, told)
    if span is None and knows is False:
        return failure(
            "vllm",
            f"{name} is not in {told}",
            "vLLM refuses to start: Model architectures are not supported for now",
            "serve another model, or wait for a vLLM that knows it",
        )
    return not_known(
        "vllm",
        f"whether {told} knows {name}: the versions compared are {', '.join(package.versions)}",
        "name the interpreter that has it: --python PATH",
    )


def _dropped(name: str, told: str, last: str) -> Check:
    return failure(
        "vllm",
        f"{told} has dropped {name}; {last} was the last to know it",
        "vLLM refuses to start: it is not supported in V1",
        f"pip install 'vllm=={last}'",
    )


def _through_transformers(name: str, told: str) -> Check:
    return warning(
        "vllm",
        f"{told} has no code for {name}, and falls back to that of transformers",
        "that is slower, and works for models whose attention transformers can replace only",
        "start it once to see: prime-train validate CONFIG --deep",
    )
