"""Judges a model by all that is known of it: every check, then a verdict per use. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prime_train.dialects.nearest import nearest
from prime_train.estimate.values import Hardware
from prime_train.facts.model_evidence import Evidence
from prime_train.facts.model_source import ModelFiles
from prime_train.facts.tokenizer import Tokenized
from prime_train.model_registry import TestedModel, tested_model, tested_models
from prime_train.verify import files, known, memory, template, tokens
from prime_train.verify.check import Check, Verdict, failure, not_known, ok, warning
from prime_train.verify.config import Config, read_config
from prime_train.verify.known import Stack
from prime_train.verify.uses import uses

_SHORT_CTX_TOKENS = 8192


def judge(evidence: Evidence, stack: Stack, hardware: Hardware) -> Verdict:
    """Every check in the order in which a person would ask, and what the model can be used for."""
    config = _config(evidence)
    tested = tested_model(evidence.files.name)
    checks = tuple(_checks(evidence, config, stack, hardware, tested))
    return Verdict(
        evidence.files.name,
        evidence.files.origin,
        evidence.files.revision,
        checks,
        uses(checks),
        _numbers(evidence, config if isinstance(config, Config) else None),
    )


def _config(evidence: Evidence) -> Config | str:
    if evidence.config is None:
        unread = evidence.files.unread_of("config.json")
        return f"config.json could not be had: {unread.detail}" if unread else "there is no config.json"
    weights = evidence.files.weights
    # A packed or partly read model does not have as many parameters as it has numbers.
    whole = weights is not None and not weights.faults and set(weights.by_dtype) <= {"BF16", "F16", "F32"}
    return read_config(evidence.config, evidence.files.name, weights.stored if weights is not None and whole else None)


def _checks(
    evidence: Evidence, config: Config | str, stack: Stack, hardware: Hardware, tested: TestedModel | None
) -> Iterator[Check]:
    yield files.check_access(evidence.files)
    if isinstance(config, str):
        yield _no_config(evidence, config)
        return
    yield from check_config(config)
    yield known.check_bundled(config)
    transformers = known.check_transformers(config, stack)
    yield transformers
    yield known.check_prime_rl(config, transformers, stack)
    yield known.check_vllm(config, stack)
    yield files.check_weights(evidence.files, config)
    yield from _texts(evidence, config, stack, tested)
    yield check_context(config, evidence.tokenizer_config)
    if config.shape is not None:
        yield from memory.check_memory(config, hardware, stack.vllm)
    yield files.check_licence(evidence.files)
    yield check_issues(evidence.files, tested)


def _texts(evidence: Evidence, config: Config, stack: Stack, tested: TestedModel | None) -> Iterator[Check]:
    """What concerns tokenizer and template."""
    tokenized, renderings = evidence.tokenized, evidence.renderings
    yield tokens.check_tokenizer(tokenized)
    found = [
        tokens.check_vocabulary(tokenized, files.vocabulary_rows(evidence.files, config)),
        template.check_template(evidence.template, renderings),
        template.check_tools(renderings),
        template.check_parser(renderings, stack, tested),
        template.check_growth(renderings, tokenized if isinstance(tokenized, Tokenized) else None),
        tokens.check_turn_end(tokenized, renderings, config.text, evidence.generation),
    ]
    yield from (check for check in found if check is not None)


def _no_config(evidence: Evidence, what: str) -> Check:
    adapter = "adapter_config.json" in evidence.files.sizes
    return failure(
        "config",
        what + ("; adapter_config.json is: it is a LoRA adapter, no model" if adapter else ""),
        "nothing can be loaded without it",
        "name the base model, or merge the adapter into it" if adapter else "name the repository that has the model",
    )


def check_config(config: Config) -> Iterator[Check]:
    """What config.json is of: a language model or none, one that sees, quantised, with code of its own."""
    if config.shape is None:
        yield failure(
            "config",
            f"config.json: {config.shape_fault}",
            "it is no decoder that writes text, or its sizes are no sizes",
            "name a causal language model, or take config.json from where the weights came from",
        )
    else:
        yield ok("config", f"{config.architecture or 'no architecture'} ({config.model_type or 'no model_type'})")
    if config.sees:
        yield warning(
            "kind",
            f"vision-language: {config.model_type}, its decoder is {config.text_type}",
            "the bundled trainer is for text, and prime-rl trains it with what samples bring of images",
            "take the text-only model where you have no images",
        )
    else:
        yield ok("kind", "text-only")
    yield _quantisation(config)
    if config.remote_code:
        yield warning(
            "remote-code",
            f"it brings code of its own for {', '.join(config.remote_code)}",
            "with trust_remote_code it runs with your rights; without it transformers' own code is used, if it has any",
            "read it and pin a revision before you trust it",
        )


def _quantisation(config: Config) -> Check:
    if config.quantization:
        return failure(
            "quantisation",
            f"{config.quantization}: vLLM serves it, no trainer here goes on from it",
            "its weights are packed: they have no gradient and no room for a small step",
            "train the full-precision model it was made from, and serve this one if you like",
        )
    return ok("quantisation", f"none, stored as {config.dtype or 'the weights say'}")


def check_context(config: Config, tokenizer_config: Mapping[str, Any]) -> Check:
    """The longest context, as vLLM derives it, and what a tokenizer would cut it to."""
    if not config.ctx_tokens:
        return warning(
            "context",
            "config.json says no length",
            "vLLM then takes 2,048 tokens",
            "set max_model_len, or add max_position_embeddings to config.json",
        )
    scaling = f" with {config.rope} RoPE" if config.rope and config.rope != "default" else ""
    told = f"{config.ctx_tokens:,} tokens{scaling}"
    limit = tokenizer_config.get("model_max_length")
    if type(limit) is int and 0 < limit < config.ctx_tokens:
        return warning(
            "context",
            f"{told}; the tokenizer's model_max_length is {limit:,}",
            "vLLM takes the smaller of the two",
            "set max_model_len yourself, at most the smaller one",
        )
    if config.ctx_tokens < _SHORT_CTX_TOKENS:
        return warning(
            "context",
            told,
            "prompt and answer together must fit: a chain of thought often does not",
            "keep the prompt and max_tokens below it, or take a model with a longer context",
        )
    return ok("context", told)


def check_issues(source: ModelFiles, tested: TestedModel | None) -> Check:
    """What the registry knows of this very model."""
    name = source.name
    if source.origin == "folder":
        return not_known("known-issues", "they are looked up by the name on the hub, and this is a folder")
    if tested is None:
        meant = nearest(name, tested_models())
        beside = f"; {meant} is" if meant else ""
        return ok("known-issues", f"none known: {name} is not in the registry of tested models{beside}")
    runs = f"run with prime-rl {', '.join(tested.prime_rl)}" if tested.prime_rl else f"run: {tested.sources[0]}"
    if not tested.issues:
        return ok("known-issues", f"none known; {runs}")
    first = tested.issues[0]
    more = f" (and {len(tested.issues) - 1} more: prime-train models show {name})" if len(tested.issues) > 1 else ""
    return warning("known-issues", f"{first.what}{more}", f"{first.where}; source: {first.source}", first.fix)


def _numbers(evidence: Evidence, config: Config | None) -> dict[str, float | int | str | None]:
    weights, shape = evidence.files.weights, config.shape if config is not None else None
    tokenized = evidence.tokenized
    return {
        "parameters": shape.parameters if shape is not None else None,
        "stored_bytes": weights.stored_bytes if weights is not None else None,
        "ctx_tokens": (config.ctx_tokens or None) if config is not None else None,
        "vocab_size": shape.vocab_size if shape is not None else None,
        "tokenizer_size": tokenized.size if isinstance(tokenized, Tokenized) and not tokenized.fault else None,
        "model_type": config.model_type if config is not None else None,
        "architecture": config.architecture if config is not None else None,
        "quantization": (config.quantization or None) if config is not None else None,
        "licence": evidence.files.card.get("license"),
    }
