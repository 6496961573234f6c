"""Checks of a model's files: can they be read, are the weights complete, which licence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prime_train.core.units import counted, format_bytes, format_count
from prime_train.facts.facts import NotKnown
from prime_train.models.checks.weight_checks import find_unused, find_weight_faults
from prime_train.models.read.chat_template import ANSWER, Renderings
from prime_train.models.read.config import ModelConfigFile, stop_ids
from prime_train.models.read.evidence import TURN_END, Tokenized
from prime_train.models.read.model_files import ModelFiles, ReadFault, Weights
from prime_train.models.verdict.verdicts import Check, failure, not_known, ok, warning

_WEIGHT_SUFFIXES = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
# Licences without restrictions on training or publishing. Source: huggingface.co/docs/hub, the list of licences.
_FREE = frozenset(("apache-2.0", "mit", "bsd-3-clause", "bsd-2-clause", "bsd", "cc0-1.0", "unlicense", "cc-by-4.0"))
_UNREAD_FIXES = {
    ReadFault.UNREADABLE: "chmod u+r the file, or run as its owner",
    ReadFault.NOT_REGULAR: "replace it by the file itself: only regular files are read",
}
_NOT_COMMERCIAL = ("-nc", "non-commercial", "noncommercial", "research")


def check_access(files: ModelFiles) -> Check:
    where = {"folder": str(files.folder), "cache": f"the local cache, revision {files.revision[:12]}"}.get(
        files.origin, f"the hub, revision {files.revision[:12]}"
    )
    summary = f"{where}: {counted(len(files.sizes), 'file')}, {format_bytes(sum(files.sizes.values()))}"
    hub = files.unread_of("")
    if hub is not None:
        return warning(
            "access",
            f"{summary}; the hub itself did not answer ({hub.detail})",
            "the cached files may be older than those on the hub",
            "try again later, or set HF_HUB_OFFLINE=1 for the run as well",
        )
    unread = [item for item in files.unread if item.file]
    if unread:
        return failure(
            "access",
            "; ".join(f"{item.file}: {item.fault} ({item.detail})" for item in unread[:3]),
            "a file that cannot be read cannot be checked, and a run would fail to read it too",
            _UNREAD_FIXES.get(unread[0].fault, "try again: the hub or the network may have failed for a moment"),
        )
    return ok("access", summary + (f"; gated ({files.gated}), and you have access" if files.gated else ""))


def check_weights(files: ModelFiles, config: ModelConfigFile | None) -> Check:
    """Whether all weights exist as safetensors files that match their index and the config."""
    weights = files.weights
    if weights is None:
        return _no_weights(files)
    if weights.faults:
        if files.origin == "cache":
            return not_known("weights", f"the cache does not have all of them: {weights.faults[0]}")
        more = f" (and {len(weights.faults) - 1} more)" if len(weights.faults) > 1 else ""
        return failure(
            "weights",
            weights.faults[0] + more,
            "neither a trainer nor vLLM loads an incomplete model",
            f"hf download {files.name}" if files.origin == "hub" else "copy the file again, or download it again",
        )
    if config is not None:
        fault = next(find_weight_faults(weights, config), None)
        if fault is not None:
            return failure("weights", *fault)
        unused = find_unused(weights, config)
        if unused:
            return warning(
                "weights",
                unused,
                "transformers leaves them out, and vLLM may refuse them",
                "check that config.json belongs to the weights",
            )
    return ok("weights", _describe(weights))


def _describe(weights: Weights) -> str:
    kinds = ", ".join(
        f"{100 * count / weights.stored:.0f} % {dtype}"
        for dtype, count in sorted(weights.by_dtype.items(), key=lambda item: -item[1])
        if count * 100 >= weights.stored
    )
    files = counted(weights.files, "safetensors file")
    return f"{format_count(weights.stored)} numbers ({kinds}), {format_bytes(weights.stored_bytes)} in {files}"


def _no_weights(files: ModelFiles) -> Check:
    if files.origin == "cache":
        return not_known("weights", "the cache has none of them", f"hf download {files.name}")
    if any(item.file.endswith((".safetensors", ".index.json")) for item in files.unread):
        return not_known("weights", "their headers could not be read")
    others = sorted({suffix for suffix in _WEIGHT_SUFFIXES for file in files.sizes if file.endswith(suffix)})
    if others:
        return failure(
            "weights",
            f"there are {' and '.join(others)} files, but no safetensors",
            "the bundled trainer and prime-rl read only safetensors, because loading a pickle runs its code",
            "use a repository with safetensors, or convert it with transformers: save_pretrained(PATH)",
        )
    return failure(
        "weights",
        "there is no safetensors file",
        "without weights the model can be trained only from a random start",
        'name a repository that has weights, or set model.init = "random"',
    )


def check_licence(files: ModelFiles) -> Check:
    name = files.card.get("license", "")
    if name == "other":
        name = files.card.get("license_name") or "other"
    if not name:
        return not_known(
            "licence", "the model card names none", "read its LICENSE file before you publish a model trained from it"
        )
    if any(word in name.lower() for word in _NOT_COMMERCIAL):
        return warning("licence", name, "it forbids commercial use", "train for research only, or use another model")
    if name.lower() in _FREE:
        return ok("licence", name)
    return warning(
        "licence",
        name,
        "it is not a standard free licence: it may restrict the name and the use of the trained model",
        f"read it: {files.card.get('license_link') or 'the LICENSE file of the model'}",
    )


def vocabulary_rows(files: ModelFiles, config: ModelConfigFile | None) -> int:
    """Rows of the embedding: from the weights, else from config.json; 0 if neither has them."""
    if files.weights is not None and files.weights.embedding:
        return files.weights.embedding[0]
    return config.shape.vocab_size if config is not None and config.shape is not None else 0


def check_tokenizer(tokenized: Tokenized | NotKnown | None) -> Check:
    if tokenized is None:
        return failure(
            "tokenizer",
            "there is no tokenizer",
            "neither a trainer nor vLLM can turn text into tokens",
            "copy tokenizer.json and tokenizer_config.json from the original model",
        )
    if isinstance(tokenized, NotKnown):
        return not_known("tokenizer", tokenized.reason, "name an interpreter with tokenizers: --python PATH")
    if tokenized.fault:
        return failure(
            "tokenizer",
            f"it does not load: {tokenized.fault}",
            "every process of a run loads the tokenizer first",
            "download it again, or install a newer tokenizers",
        )
    if not tokenized.restored:
        return warning(
            "tokenizer",
            f"{tokenized.size:,} tokens; a text with tabs, accents and an emoji changes when encoded and decoded",
            "the model cannot learn text that its tokenizer cannot encode",
            "check that this is the tokenizer of this model",
        )
    return ok("tokenizer", f"it loads: {tokenized.size:,} tokens")


def check_vocabulary(tokenized: Tokenized | NotKnown | None, rows: int) -> Check | None:
    """None if the tokenizer or the number of rows is not known."""
    if not isinstance(tokenized, Tokenized) or tokenized.fault or not rows:
        return None
    if tokenized.highest >= rows:
        return failure(
            "vocabulary",
            f"the tokenizer's highest token is {tokenized.highest}, the embedding has {rows} rows",
            "the first step with a token beyond the last row fails with a CUDA assert",
            "use the tokenizer of this model, or resize the embedding",
        )
    return ok("vocabulary", f"highest token {tokenized.highest} of {rows} rows in the embedding")


def check_turn_end(
    tokenized: Tokenized | NotKnown | None,
    renderings: Renderings | NotKnown | None,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
) -> Check | None:
    """Whether the token that the template writes after an answer ends a generation. None if not known."""
    if not isinstance(tokenized, Tokenized) or not isinstance(renderings, Renderings):
        return None
    text = renderings.texts.get("chat_2", "")
    stops = stop_ids(config, generation)
    after = text.rpartition(ANSWER)[2].strip()
    if not after or not stops:
        return None
    first = tokenized.ids.get(TURN_END, ())
    if not first or first[0] in stops:
        return ok("turn-end", f"{after.split()[0][:40]} ends a turn, and vLLM stops at it")
    return warning(
        "turn-end",
        f"the template ends a turn with {after.split()[0][:40]} (token {first[0]}), and the model's eos_token_id is "
        f"{', '.join(map(str, sorted(stops)))}",
        "vLLM does not stop there: each answer continues to max_tokens",
        f"add {first[0]} to eos_token_id in generation_config.json, or to stop_token_ids of the sampling",
    )
