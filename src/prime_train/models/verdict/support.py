"""Checks whether the bundled trainer, transformers, prime-rl and vLLM support a model. Pure."""

from __future__ import annotations

from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from prime_train.core.errors import UserError
from prime_train.facts.facts import NotKnown
from prime_train.models.checks.name_checks import find_name_fault
from prime_train.models.read.architectures import InstalledPackages
from prime_train.models.read.config import ModelConfigFile
from prime_train.models.read.model_files import ModelFiles
from prime_train.models.verdict.verdicts import Check, Outcome, failure, not_known, ok, warning
from prime_train.registry.models import (
    prime_rl_types,
    prime_rl_vision_types,
    transformers_types,
    vllm_architectures,
    vllm_gone,
)
from prime_train.spec.hf_config import MODEL_TYPES, read_architecture

_NO_TRANSFORMERS = "pip install a newer transformers into the run's environment"


class Stack(NamedTuple):
    """The software for the run: an interpreter's packages, and the version of --vllm, "" for the installed one."""

    installed: InstalledPackages | NotKnown
    vllm: str = ""

    @property
    def here(self) -> InstalledPackages | None:
        return self.installed if isinstance(self.installed, InstalledPackages) else None

    @property
    def here_with_vllm(self) -> InstalledPackages | None:
        return self.here if self.here is not None and self.here.has_vllm and not self.vllm else None


def check_bundled(config: ModelConfigFile) -> Check:
    """Whether the bundled trainer supports the model, which must be text-only."""
    what, why = "it has no vision encoder and no audio", "pretraining and SFT of this model need another trainer"
    if not config.has_vision:
        try:
            # Quantised weights have a check of their own, and random weights need none.
            plain = {key: value for key, value in config.values.items() if key != "quantization_config"}
            read_architecture(plain, "config.json")
        except UserError as refusal:
            what, why = refusal.what, refusal.why
        else:
            return ok("bundled-trainer", f"{config.model_type} is supported")
    return warning("bundled-trainer", what, why, f"use prime-rl, or one of {', '.join(MODEL_TYPES)}")


def check_transformers(config: ModelConfigFile, stack: Stack) -> Check:
    package = transformers_types()
    here = stack.here
    span = package.known.get(config.model_type)
    since = f"known since {span.first}" if span else f"not known to {package.versions[-1]}"
    if here is not None and here.has_transformers:
        where = f"{config.model_type} in transformers {here.transformers} of {here.python}"
        if config.model_type in here.transformers_types:
            return ok("transformers", where)
        if config.remote_code:
            return _remote_code("transformers", where, config)
        return failure(
            "transformers",
            f"no {where}; {since}",
            "AutoConfig refuses an unknown model_type",
            f"pip install 'transformers>={span.first}'" if span else _NO_TRANSFORMERS,
        )
    if span is None and config.remote_code:
        return _remote_code("transformers", f"{config.model_type}, {since}", config)
    if span is None:
        return failure("transformers", f"{config.model_type} is {since}", "AutoConfig refuses it", _NO_TRANSFORMERS)
    if span.last:
        return warning(
            "transformers",
            f"{config.model_type} was known from {span.first} to {span.last}",
            "a newer transformers has removed it",
            f"pip install 'transformers<={span.last}'",
        )
    return ok("transformers", f"{config.model_type} is {since}")


def _remote_code(check_id: str, where: str, config: ModelConfigFile) -> Check:
    return warning(
        check_id,
        f"only with code from the model's repository ({', '.join(config.remote_code)}): {where}",
        "that code runs with your permissions, and its author can change it",
        "read it, pin a revision, then set trust_remote_code = true",
    )


class _PrimeRl(NamedTuple):
    """The model types that prime-rl trains: the installed one, else the one in the table."""

    name: str
    types: frozenset[str]
    vision_types: frozenset[str]
    takes_others: bool


def _prime_rl(here: InstalledPackages | None) -> _PrimeRl:
    if here is not None and here.has_prime_rl:
        name = f"prime-rl {here.prime_rl} of {here.python}"
        return _PrimeRl(name, here.prime_rl_types, here.prime_rl_vision_types, here.prime_rl_takes_others)
    types, vision_types = prime_rl_types(), prime_rl_vision_types()
    return _PrimeRl("prime-rl of 2026-08", types, vision_types, takes_others=True)


def check_prime_rl(config: ModelConfigFile, transformers: Check, stack: Stack) -> Check:
    """Whether prime-rl trains the model: with its own code, else through transformers, as `impl = "auto"` chooses."""
    prime_rl = _prime_rl(stack.here)
    if config.has_vision:
        if config.model_type in prime_rl.vision_types:
            return ok("prime-rl", f"{config.model_type} is a vision-language model that {prime_rl.name} supports")
        return warning(
            "prime-rl",
            f"{config.model_type} is not among the vision-language models that {prime_rl.name} lists "
            f"({', '.join(sorted(prime_rl.vision_types)) or 'none'})",
            "it does not know the attributes of that model's decoder and vision encoder",
            "set model.vlm.vision_encoder_attr and model.vlm.language_model_attr, or use a listed model",
        )
    if config.model_type in prime_rl.types:
        return ok("prime-rl", f"{prime_rl.name} has its own code for {config.model_type}")
    if transformers.outcome is Outcome.FAILURE or not prime_rl.takes_others:
        why = "it runs no model through transformers" if not prime_rl.takes_others else transformers.what
        fix = transformers.fix or f"use a model that it has code for: {', '.join(sorted(prime_rl.types))}"
        return failure("prime-rl", f"{prime_rl.name} has no code for {config.model_type}", why, fix)
    # Later revisions of its trainer/model.py raise "has no PrimeRL model implementation" instead.
    return warning(
        "prime-rl",
        f'{config.model_type} goes through transformers (impl = "hf") in {prime_rl.name}',
        "no expert or context parallelism, and releases after 2026-08 no longer support it",
        "expect it to be slower; for MoE use a model that prime-rl has code for",
    )


def check_vllm(config: ModelConfigFile, stack: Stack) -> Check:
    if not config.architecture:
        return failure(
            "vllm",
            "config.json names no architecture",
            "vLLM selects its code by the architecture",
            'add "architectures": ["..."] to config.json, copied from the original model',
        )
    here = stack.here_with_vllm
    if (old := _old_for_rope(config, stack.vllm if here is None else here.vllm)) is not None:
        return old
    return _table_vllm(config, stack.vllm) if here is None else _installed_vllm(config, here)


def check_names_for_vllm(files: ModelFiles, config: ModelConfigFile) -> Check | None:
    """A failure if tensor names lack the root, which transformers adds and vLLM does not; else None.

    Source: vLLM, AutoWeightsLoader in model_executor/models/utils.py, which refuses a name without a module.
    """
    fault = find_name_fault(files.weights, config) if files.weights is not None else None
    if fault is None or not fault.base_only:
        return None
    return failure(
        "vllm",
        fault.what,
        f"vLLM refuses weights of {config.architecture} whose names lack the root: there is no module with that name",
        "load the folder with transformers as a causal language model, and save it with save_pretrained",
    )


# RoPE kinds that older programs refuse. Source: vLLM release v0.5.3, transformers release v4.43.0 (Llama 3.1).
_ROPE_SINCE = {"llama3": ("0.5.3", "4.43.0")}


def _old_for_rope(config: ModelConfigFile, vllm: str) -> Check | None:
    since = _ROPE_SINCE.get(config.rope)
    if since is None or not vllm or _release(vllm) >= _release(since[0]):
        return None
    return failure(
        "vllm",
        f"rope_scaling of the kind {config.rope} is not known to vLLM {vllm}",
        f"the kind came with vLLM {since[0]} and transformers {since[1]}; an older one refuses config.json",
        f"pip install 'vllm>={since[0]}'",
    )


def _release(version: str) -> tuple[int, ...]:
    try:
        return Version(version).release
    except InvalidVersion:  # an own build, which is as new as any
        return (10**6,)


def _installed_vllm(config: ModelConfigFile, here: InstalledPackages) -> Check:
    name, vllm = config.architecture, f"vLLM {here.vllm} of {here.python}"
    if name in here.vllm_architectures:
        return ok("vllm", f"{name} in {vllm}")
    if name in here.vllm_gone:
        return _removed_from_vllm(name, vllm, here.vllm_gone[name])
    return _not_in_vllm(name, vllm, config.model_type in here.transformers_types)


def _table_vllm(config: ModelConfigFile, version: str) -> Check:
    package, name = vllm_architectures(), config.architecture
    span, gone = package.known.get(name), vllm_gone(name)
    newest = package.versions[-1]
    supported = package.knows(name, version or newest)
    vllm = f"vLLM {version}" if version else f"vLLM {newest} (none is installed here: from the table)"
    if supported:
        return ok("vllm", f"{name} in {vllm}, known since {span.first if span else ''}")
    if gone and supported is False and (span is None or span.last):
        return _removed_from_vllm(name, vllm, gone)
    if supported is False:
        return _not_in_vllm(name, vllm, config.model_type in transformers_types().known)
    return not_known(
        "vllm",
        f"whether {vllm} supports {name}: the versions compared are {', '.join(package.versions)}",
        "name the interpreter with that vLLM: --python PATH",
    )


def _removed_from_vllm(name: str, vllm: str, last: str) -> Check:
    return failure(
        "vllm",
        f"{vllm} has removed {name}; {last} was the last version with it",
        "vLLM refuses to start: it is not supported in V1",
        f"pip install 'vllm=={last}'",
    )


def _not_in_vllm(name: str, vllm: str, is_in_transformers: bool) -> Check:
    span = vllm_architectures().known.get(name)
    if span is None and is_in_transformers:
        return warning(
            "vllm",
            f"{vllm} has no code for {name}, and falls back to the code of transformers",
            "the fallback is slower, and works only if vLLM can replace the model's attention in transformers",
            "test whether it starts: prime-train validate CONFIG --deep",
        )
    return failure(
        "vllm",
        f"{name} is not in {vllm}" + (f"; known since {span.first}" if span else ""),
        "vLLM refuses to start: Model architectures are not supported for now",
        f"pip install 'vllm>={span.first}'" if span else "serve another model, or wait for a vLLM that supports it",
    )
