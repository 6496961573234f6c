"""Checks of what a model's repository holds: can it be read, is it whole, under which licence. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.facts.model_source import Fault, ModelFiles, Weights
from prime_train.units import counted, format_bytes, format_count
from prime_train.verify.check import Check, failure, not_known, ok, warning
from prime_train.verify.config import Config

_WEIGHT_SUFFIXES = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
# Licences that bind who trains with the model or publishes what came of it. Source: huggingface.co/docs/hub, the
# list of licences; their texts.
_FREE = frozenset(("apache-2.0", "mit", "bsd-3-clause", "bsd-2-clause", "bsd", "cc0-1.0", "unlicense", "cc-by-4.0"))
_NOT_COMMERCIAL = ("-nc", "non-commercial", "noncommercial", "research")


def check_access(files: ModelFiles) -> Check:
    where = {"folder": str(files.folder), "cache": f"the local cache, revision {files.revision[:12]}"}.get(
        files.origin, f"the hub, revision {files.revision[:12]}"
    )
    told = f"{where}: {counted(len(files.sizes), 'file')}, {format_bytes(sum(files.sizes.values()))}"
    hub = files.unread_of("")
    if hub is not None:
        return warning(
            "access",
            f"{told}; the hub itself gave no answer ({hub.detail})",
            "what the cache holds may be older than what is on the hub",
            "try again later, or set HF_HUB_OFFLINE=1 for the run as well",
        )
    unread = [item for item in files.unread if item.file]
    if unread:
        return failure(
            "access",
            "; ".join(f"{item.file}: {item.fault} ({item.detail})" for item in unread[:3]),
            "what cannot be read cannot be judged, and a run would fail on it as well",
            _unread_fix(unread[0].fault),
        )
    return ok("access", told + (f"; gated ({files.gated}), and you may read it" if files.gated else ""))


def _unread_fix(fault: Fault) -> str:
    if fault is Fault.UNREADABLE:
        return "chmod u+r the file, or run as its owner"
    return "try again: it may be a passing fault of the hub or of the line"


def check_weights(files: ModelFiles, config: Config | None) -> Check:
    """Whether all weights are there, in safetensors files that fit their index and the config."""
    weights = files.weights
    if weights is None:
        return _no_weights(files)
    if weights.faults:
        if files.origin == "cache":
            return not_known("weights", f"the cache does not hold all of them: {weights.faults[0]}")
        more = f" (and {len(weights.faults) - 1} more)" if len(weights.faults) > 1 else ""
        return failure(
            "weights",
            weights.faults[0] + more,
            "neither a trainer nor vLLM loads a part of a model",
            f"hf download {files.name}" if files.origin == "hub" else "copy the file again, or download it again",
        )
    mismatch = next(_mismatches(weights, config), "") if config is not None else ""
    if mismatch:
        return failure(
            "weights",
            mismatch,
            "config.json belongs to another model than the weights",
            "take config.json from where the weights came from",
        )
    return ok("weights", _told(weights))


def _told(weights: Weights) -> str:
    kinds = ", ".join(
        f"{100 * count / weights.stored:.0f} % {dtype}"
        for dtype, count in sorted(weights.by_dtype.items(), key=lambda item: -item[1])
        if count * 100 >= weights.stored
    )
    files = counted(weights.files, "safetensors file")
    return f"{format_count(weights.stored)} numbers ({kinds}), {format_bytes(weights.stored_bytes)} in {files}"


def _mismatches(weights: Weights, config: Config) -> Iterator[str]:
    shape = config.shape
    if shape is None:
        return
    # Extra blocks predict further tokens (num_nextn_predict_layers): what loads the model leaves them out.
    if 0 < weights.layers < shape.layers:
        yield f"the weights have {weights.layers} blocks, config.json says num_hidden_layers = {shape.layers}"
    if weights.embedding and not config.quantization:
        rows, width = weights.embedding
        if width != shape.hidden_size:
            yield f"the embedding is {width} wide, config.json says hidden_size = {shape.hidden_size}"
        if rows < shape.vocab_size:
            yield f"the embedding has {rows} rows, config.json says vocab_size = {shape.vocab_size}"


def _no_weights(files: ModelFiles) -> Check:
    if files.origin == "cache":
        return not_known("weights", "the cache holds none of them", f"hf download {files.name}")
    if any(item.file.endswith((".safetensors", ".index.json")) for item in files.unread):
        return not_known("weights", "their headers could not be read")
    others = sorted({suffix for suffix in _WEIGHT_SUFFIXES for file in files.sizes if file.endswith(suffix)})
    if others:
        return failure(
            "weights",
            f"there are {' and '.join(others)} files and no safetensors",
            "the bundled trainer and prime-rl read safetensors only, and a pickle runs code when it is loaded",
            "take a repository with safetensors, or convert it with transformers: save_pretrained(PATH)",
        )
    return failure(
        "weights",
        "there is no safetensors file",
        "there is nothing to serve or to go on training; a random start needs none",
        'name the repository that has them, or set model.init = "random"',
    )


def check_licence(files: ModelFiles) -> Check:
    name = files.card.get("license", "")
    if name == "other":
        name = files.card.get("license_name") or "other"
    if not name:
        return not_known(
            "licence", "the model card names none", "read its LICENSE file before you publish what you train"
        )
    if any(word in name.lower() for word in _NOT_COMMERCIAL):
        return warning("licence", name, "it forbids commercial use", "train for research only, or take another model")
    if name.lower() in _FREE:
        return ok("licence", name)
    return warning(
        "licence",
        name,
        "it is not one of the plain free licences: it may bind the name and the use of what you train",
        f"read it: {files.card.get('license_link') or 'the LICENSE file of the model'}",
    )


def vocabulary_rows(files: ModelFiles, config: Config | None) -> int:
    """Rows of the embedding: as the weights have them, else as config.json says; 0 where neither tells."""
    if files.weights is not None and files.weights.embedding:
        return files.weights.embedding[0]
    return config.shape.vocab_size if config is not None and config.shape is not None else 0
