"""Runs every check on the evidence about a model, then gives one verdict per use. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prime_train.core.units import format_count
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.estimate.values import Hardware
from prime_train.models.checks.config_checks import find_config_faults
from prime_train.models.checks.file_checks import (
    check_access,
    check_licence,
    check_tokenizer,
    check_turn_end,
    check_vocabulary,
    check_weights,
    vocabulary_rows,
)
from prime_train.models.checks.memory_checks import check_serving, check_training
from prime_train.models.checks.template_checks import check_history, check_parser, check_template, check_tools
from prime_train.models.read.config import ModelConfigFile, read_config
from prime_train.models.read.evidence import ModelEvidence, Tokenized
from prime_train.models.read.model_files import ModelFiles, RefusedRead
from prime_train.models.verdict.support import (
    Stack,
    check_bundled,
    check_names_for_vllm,
    check_prime_rl,
    check_transformers,
    check_vllm,
)
from prime_train.models.verdict.verdicts import (
    Check,
    ModelVerdict,
    Outcome,
    failure,
    judge_uses,
    not_known,
    ok,
    warning,
)
from prime_train.registry.models import TestedModel, tested_model, tested_models
from prime_train.toml.did_you_mean import nearest

_SHORT_CTX_TOKENS = 8192


def judge(evidence: ModelEvidence, stack: Stack, hardware: Hardware) -> ModelVerdict:
    """The checks, access first, and the uses that they allow."""
    config = _config(evidence)
    tested = tested_model(evidence.files.name)
    checks = tuple(_checks(evidence, config, stack, hardware, tested))
    return ModelVerdict(
        evidence.files.name,
        evidence.files.origin,
        evidence.files.revision,
        checks,
        judge_uses(checks),
        _numbers(evidence, config if isinstance(config, ModelConfigFile) else None),
        is_damaged=evidence.files.weights is not None
        and any(check.id == "weights" and check.outcome is Outcome.FAILURE for check in checks),
    )


def judge_unreached(name: str, refused: RefusedRead, stack: Stack, hardware: Hardware) -> ModelVerdict | None:
    """What the registry and the table of architectures know of a model that cannot be read; None if nothing."""
    tested, shape = tested_model(name), shape_from_registry(name)
    if tested is None and shape is None:
        return None
    checks = [not_known("access", f"{refused.detail or refused.fault}; the rest is from the registry")]
    if shape is not None:
        size = f"{format_count(shape.parameters)} parameters in {shape.layers} blocks (source: {shape.source})"
        checks.append(ok("config", f"{tested.architecture} with {size}" if tested and tested.architecture else size))
    if tested is not None and tested.architecture:
        checks.append(check_vllm(_blank_config()._replace(architectures=(tested.architecture,)), stack))
    if tested is not None and tested.tool_parser:
        checks.append(ok("tool-parser", f"--tool-call-parser {tested.tool_parser} (from the registry)"))
    if shape is not None:
        if shape.ctx_tokens:
            checks.append(ok("context", f"{shape.ctx_tokens:,} tokens"))
        checks += [check_serving(shape, hardware, stack.vllm), check_training(shape, hardware)]
    files = ModelFiles(name, "registry", Path(), "", {}, (), None, {})
    checks.append(check_issues(files, tested))
    numbers = {"parameters": shape.parameters, "ctx_tokens": shape.ctx_tokens or None} if shape is not None else {}
    return ModelVerdict(name, "registry", "", tuple(checks), judge_uses(checks), numbers)


def _blank_config() -> ModelConfigFile:
    return ModelConfigFile({}, {}, "", "", (), False, (), "", "", 0, "", None, "")


def _config(evidence: ModelEvidence) -> ModelConfigFile | str:
    if evidence.config is None:
        unread = evidence.files.unread_of("config.json")
        return f"config.json could not be read: {unread.detail}" if unread else "there is no config.json"
    weights = evidence.files.weights
    # In quantised or incomplete weights the count of stored numbers is not the count of parameters.
    whole = weights is not None and not weights.faults and set(weights.by_dtype) <= {"BF16", "F16", "F32"}
    return read_config(evidence.config, evidence.files.name, weights.stored if weights is not None and whole else None)


def _checks(
    evidence: ModelEvidence, config: ModelConfigFile | str, stack: Stack, hardware: Hardware, tested: TestedModel | None
) -> Iterator[Check]:
    yield check_access(evidence.files)
    if isinstance(config, str):
        yield _no_config(evidence, config)
        return
    yield from check_config(config)
    yield check_bundled(config)
    transformers = check_transformers(config, stack)
    yield transformers
    yield check_prime_rl(config, transformers, stack)
    yield check_names_for_vllm(evidence.files, config) or check_vllm(config, stack)
    yield check_weights(evidence.files, config)
    yield from _check_text(evidence, config, stack, tested)
    yield check_context(config, evidence.tokenizer_config)
    if config.shape is not None:
        yield check_serving(config.shape, hardware, stack.vllm)
        yield check_training(config.shape, hardware)
    yield check_licence(evidence.files)
    yield check_issues(evidence.files, tested)


def _check_text(
    evidence: ModelEvidence, config: ModelConfigFile, stack: Stack, tested: TestedModel | None
) -> Iterator[Check]:
    """The checks of tokenizer and chat template."""
    tokenized, renderings = evidence.tokenized, evidence.renderings
    yield check_tokenizer(tokenized)
    found = [
        check_vocabulary(tokenized, vocabulary_rows(evidence.files, config)),
        check_template(evidence.template, renderings),
        check_tools(renderings),
        check_parser(renderings, stack, tested),
        check_history(renderings, tokenized if isinstance(tokenized, Tokenized) else None),
        check_turn_end(tokenized, renderings, config.text, evidence.generation),
    ]
    yield from (check for check in found if check is not None)


def _no_config(evidence: ModelEvidence, what: str) -> Check:
    adapter = "adapter_config.json" in evidence.files.sizes
    if evidence.files.unread_of("config.json") is not None:
        return failure(
            "config", what, "a model cannot be loaded without it", "put a readable, regular file in its place"
        )
    return failure(
        "config",
        what + ("; there is an adapter_config.json: this is a LoRA adapter, not a model" if adapter else ""),
        "a model cannot be loaded without it",
        "name the base model, or merge the adapter into it" if adapter else "name the repository that has the model",
    )


def check_config(config: ModelConfigFile) -> Iterator[Check]:
    """Whether config.json describes a language model, has vision, is quantised, brings remote code."""
    if config.unknown_blocks:
        yield not_known("config", f"its size and its memory: {config.shape_fault}")
    elif config.shape is None:
        yield failure(
            "config",
            f"config.json: {config.shape_fault}",
            "it is not a text decoder, or its sizes are not valid",
            "name a causal language model, or copy config.json from the original model",
        )
    elif (fault := next(find_config_faults(config), None)) is not None:
        yield failure(
            "config",
            f"config.json: {fault.key} {fault.what}",
            fault.why,
            f"{fault.key} = {fault.legal}, in config.json",
        )
    else:
        yield ok("config", f"{config.architecture or 'no architecture'} ({config.model_type or 'no model_type'})")
    if config.has_vision:
        yield warning(
            "kind",
            f"vision-language: {config.model_type}, its decoder is {config.text_type}",
            "the bundled trainer is for text only; prime-rl trains it on samples with images",
            "use the text-only model if your samples have no images",
        )
    else:
        yield ok("kind", "text-only")
    yield _quantisation(config)
    if config.remote_code:
        yield warning(
            "remote-code",
            f"its repository has Python code for {', '.join(config.remote_code)}",
            "with trust_remote_code it runs with your permissions; without, only transformers' own code is used",
            "read it and pin a revision before you trust it",
        )


def _quantisation(config: ModelConfigFile) -> Check:
    if config.quantization:
        return failure(
            "quantisation",
            f"{config.quantization}: vLLM serves it, but no trainer here can continue from it",
            "quantised weights have no gradient and cannot hold a small update",
            "train the full-precision original; you can still serve this one",
        )
    return ok("quantisation", f"none, stored as {config.dtype or 'the dtype of the weights'}")


def check_context(config: ModelConfigFile, tokenizer_config: Mapping[str, Any]) -> Check:
    """The context length that vLLM derives from config.json, and a lower limit of the tokenizer."""
    if not config.ctx_tokens:
        return warning(
            "context",
            "config.json has no context length",
            "vLLM then uses 2,048 tokens",
            "set max_model_len, or add max_position_embeddings to config.json",
        )
    scaling = f" with {config.rope} RoPE" if config.rope and config.rope != "default" else ""
    length = f"{config.ctx_tokens:,} tokens{scaling}"
    limit = tokenizer_config.get("model_max_length")
    if type(limit) is int and 0 < limit < config.ctx_tokens:
        return warning(
            "context",
            f"{length}; the tokenizer's model_max_length is {limit:,}",
            "vLLM uses the smaller one",
            "set max_model_len, at most the smaller one",
        )
    if config.ctx_tokens < _SHORT_CTX_TOKENS:
        return warning(
            "context",
            length,
            "prompt and answer must fit together, and a chain of thought is often too long",
            "keep prompt plus max_tokens below it, or use a model with a longer context",
        )
    return ok("context", length)


def check_issues(source: ModelFiles, tested: TestedModel | None) -> Check:
    """The issues that the registry lists for this model."""
    name = source.name
    if source.origin == "folder":
        return not_known("known-issues", "issues are listed by the name on the hub, and this is a folder")
    if tested is None:
        similar = nearest(name, tested_models())
        beside = f"; {similar} is" if similar else ""
        return ok("known-issues", f"none known: {name} is not in the registry of tested models{beside}")
    runs = f"run with prime-rl {', '.join(tested.prime_rl)}" if tested.prime_rl else f"run: {tested.sources[0]}"
    if not tested.issues:
        return ok("known-issues", f"none known; {runs}")
    first = tested.issues[0]
    more = f" (and {len(tested.issues) - 1} more: prime-train models show {name})" if len(tested.issues) > 1 else ""
    return warning("known-issues", f"{first.what}{more}", f"{first.where}; source: {first.source}", first.fix)


def _numbers(evidence: ModelEvidence, config: ModelConfigFile | None) -> dict[str, float | int | str | None]:
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
