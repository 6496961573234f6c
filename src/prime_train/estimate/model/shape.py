"""Builds the shape of a model, which decides memory and time, from a config.json, the registry or a run.toml.

Opens no file but the registry; `models/read/find_config.py` fetches a config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prime_train.estimate.model.blocks import Numbers, blocks_of, sliding_of, stored_bytes, widths_of
from prime_train.estimate.model.blocks import ShapeError as ShapeError
from prime_train.estimate.model.blocks import UnknownBlocksError as UnknownBlocksError
from prime_train.estimate.model.families import FAMILIES, UNKNOWN, DecoderFamily
from prime_train.estimate.model.mixed_decoders import READERS, MixedDecoder
from prime_train.estimate.model.parameters import decoder_parameters, linear_state_bytes, vision_parameters
from prime_train.estimate.model.unknown_families import check_like_llama, check_structure
from prime_train.registry.known import shape_row
from prime_train.spec import RunSpec, decoder_size
from prime_train.spec.audio import Audio
from prime_train.spec.clip_size import count_ends, count_objective, count_outside_flops, count_parameters, size_of

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_SHARED = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "vision_config", "audio_config")
_LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
_CONTEXT = ("max_position_embeddings", "seq_length", "max_seq_len", "n_positions")
_WRITES = ("CausalLM", "ConditionalGeneration", "LMHead", "ForVisionText")
_NO_DECODER = frozenset(
    ("bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta", "deberta-v2", "modernbert", "clip")
)
_MAX_PARAMETERS = 10**14  # a hundred times the largest published model


class EncoderEnds(NamedTuple):
    """What an encoder over clips has outside its blocks: weights, and FLOPs of a forward for each token."""

    ends: int  # of patches, pitches, registers and the last norm
    objective: int  # of objective and probe
    flops_per_token: float


class ModelShape(NamedTuple):
    """One decoder, or an encoder. Sizes are counts of numbers, not bytes; 0 for parts that the model does not have.

    `layers` counts all blocks, `dense_layers` those with a dense MLP. Each other block has `experts` experts of
    `expert_mlp_size`; a token visits `experts_per_token` of them and all shared experts (`shared_expert_mlp_size`
    together). `kv_lora_rank` > 0: multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, s. 2.1); its cache holds
    kv_lora_rank + rope_head_dim numbers per token and layer. `sliding_layers` see only `sliding_window` tokens. Each of
    `linear_layers` keeps a state of `linear_state_bytes` per served sequence instead of a KV cache. `multimodal_rope`:
    positions of time, height and width (Qwen2-VL, arXiv 2409.12191, s. 2.1). `parameters` counts everything that is
    loaded, `vision_parameters` the part outside the decoder, `lookup_parameters` the embeddings of single blocks.
    With `encoder` a token attends to all others, branches have gains, and `vocab_size` counts the classes.
    """

    name: str
    vocab_size: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    parameters: int
    tie_embeddings: bool
    source: str
    gated_mlp: bool = True
    qk_norm: bool = False
    dense_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_mlp_size: int = 0
    shared_expert_mlp_size: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    sliding_window: int = 0
    sliding_layers: int = 0
    linear_layers: int = 0
    vision_parameters: int = 0
    ctx_tokens: int = 0
    quantization: str = ""
    weight_bytes: float = 2.0  # per parameter as stored
    linear_state_bytes: float = 0.0
    multimodal_rope: bool = False
    lookup_parameters: int = 0
    encoder: EncoderEnds | None = None

    @property
    def is_moe(self) -> bool:
        return self.experts > 0


def shape_from_registry(name: str) -> ModelShape | None:
    """The shape of a model by its name on the hub; None if the registry does not have it."""
    row = shape_row(name)
    return None if row is None else ModelShape(name=name, **row)


def shape_from_run(run: RunSpec, vocab_size: int) -> ModelShape:
    """The shape given by the size fields of a run.toml and `vocab_size`. Raises ShapeError."""
    if run.audio is not None:
        return _shape_of_encoder(run.run.name, run.audio)
    decoder = decoder_size.architecture_from_fields(run.model, vocab_size)
    if decoder.parameters > _MAX_PARAMETERS:
        raise ShapeError("", f"its sizes make {decoder.parameters:.2g} parameters: no such model exists")
    same = (
        "vocab_size",
        "layers",
        "hidden_size",
        "heads",
        "kv_heads",
        "head_dim",
        "mlp_size",
        "tie_embeddings",
        "qk_norm",
    )
    routed = ("experts", "experts_per_token", "expert_mlp_size")
    return ModelShape(
        name=run.run.name,
        **{name: getattr(decoder, name) for name in (*same, *routed)},
        shared_expert_mlp_size=decoder.shared_mlp_size,
        parameters=decoder.parameters,
        source="the size fields of the config",
        dense_layers=0 if decoder.experts else decoder.layers,
        ctx_tokens=run.data.ctx_tokens,
        weight_bytes=4.0,
    )


def _shape_of_encoder(name: str, audio: Audio) -> ModelShape:
    """An encoder with its objective and the probe. Raises ShapeError."""
    encoder, clip, objective = audio.encoder, size_of(audio), count_objective(audio)
    parameters = count_parameters(audio) + objective
    if parameters > _MAX_PARAMETERS:
        raise ShapeError("", f"its sizes make {parameters:.2g} parameters: no such model exists")
    return ModelShape(
        name=name,
        vocab_size=audio.classes or 1,
        layers=encoder.layers,
        hidden_size=encoder.width,
        heads=encoder.heads,
        kv_heads=encoder.heads,
        head_dim=encoder.head_dim,
        mlp_size=encoder.mlp_size,
        parameters=parameters,
        tie_embeddings=False,
        source="[audio.encoder], its objective and the probe",
        qk_norm=True,
        dense_layers=encoder.layers,
        ctx_tokens=clip.tokens,
        weight_bytes=4.0,
        encoder=EncoderEnds(count_ends(audio), objective, count_outside_flops(audio) / clip.all_tokens),
    )


def shape_from_config(config: Mapping[str, Any], name: str = "", *, loaded: int | None = None) -> ModelShape:
    """The shape of a Hugging Face config.json. `loaded` is the parameter count of its weights, if known.

    Raises ShapeError with the field if it describes no decoder, or a number is missing, negative or absurd.
    """
    model_type, numbers, family = _read_decoder(config)
    tied = numbers.flag("tie_word_embeddings", default=family.tied)
    widths, blocks, decoder, state_bytes, lookup, (window, sliding_layers) = _count(model_type, numbers, family, tied)
    towers = numbers.raw("vision_config") is not None
    if model_type not in FAMILIES:
        check_like_llama(numbers, model_type, decoder, None if towers else loaded)
    vision = max(0, loaded - decoder) if loaded and towers else vision_parameters(numbers, widths.hidden_size)
    if decoder + vision > _MAX_PARAMETERS:
        raise ShapeError("", f"its sizes make {decoder + vision:.2g} parameters: no such model exists")
    vocab_size = numbers.integer("vocab_size", "padded_vocab_size")
    quantization, weight_bytes = stored_bytes(numbers, vocab_size * widths.hidden_size * (1 if tied else 2), decoder)
    return ModelShape(
        name=name or str(config.get("_name_or_path") or model_type),
        vocab_size=vocab_size,
        **widths._asdict(),
        **blocks._asdict(),
        parameters=loaded or decoder + vision,
        tie_embeddings=tied,
        source=_source(model_type, loaded is not None),
        gated_mlp=family.gated,
        qk_norm=bool(family.query_norm) and (not family.query_norm_key or numbers.flag(family.query_norm_key)),
        sliding_window=window,
        sliding_layers=sliding_layers,
        linear_state_bytes=state_bytes,
        kv_lora_rank=numbers.integer("kv_lora_rank", default=0, least=0),
        rope_head_dim=numbers.integer("qk_rope_head_dim", default=0, least=0),
        vision_parameters=vision,
        lookup_parameters=lookup,
        ctx_tokens=numbers.integer(*_CONTEXT, default=0, least=0),
        quantization=quantization,
        weight_bytes=weight_bytes,
        multimodal_rope=_has_multimodal_rope(numbers),
    )


def _count(model_type: str, numbers: Numbers, family: DecoderFamily, tied: bool) -> MixedDecoder:
    """The decoder in a config, read by the family's own reader, or as blocks that are alike."""
    if (read := READERS.get(model_type)) is not None:
        mixed = read(numbers)
        head = 0 if tied else numbers.integer("vocab_size") * mixed.widths.hidden_size
        return mixed._replace(parameters=mixed.parameters + head)
    check_structure(numbers, model_type, is_known=model_type in FAMILIES)
    widths = widths_of(numbers)
    blocks = blocks_of(numbers, family, widths.hidden_size)
    parameters = decoder_parameters(numbers, family, widths, blocks, tied=tied)
    state = linear_state_bytes(numbers) if blocks.linear_layers else 0.0
    return MixedDecoder(widths, blocks, parameters, state, sliding=sliding_of(numbers, family, blocks.layers))


def _has_multimodal_rope(numbers: Numbers) -> bool:
    """Whether the config has a `mrope_section`, under the key of transformers 4 or 5."""
    scalings = (numbers.raw(name) for name in ("rope_scaling", "rope_parameters"))
    return any(isinstance(scaling, Mapping) and "mrope_section" in scaling for scaling in scalings)


def _read_decoder(config: Mapping[str, Any]) -> tuple[str, Numbers, DecoderFamily]:
    """The model type, the numbers and the family of the decoder part of a config."""
    outer = Numbers(config, {})
    part = next((name for name in _TEXT_PARTS if config.get(name) is not None), "")
    text = outer.table(part) if part else config
    while part and "text_config" in text:  # Qwen's omni models: thinker_config.text_config
        text = Numbers(text, {}).table("text_config")
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    _check_is_decoder(config, model_type)
    family = FAMILIES.get(model_type, UNKNOWN)
    shared = {key: value for key, value in config.items() if part and key in _SHARED}
    return model_type, Numbers({**shared, **text}, family.defaults), family


def _check_is_decoder(config: Mapping[str, Any], model_type: str) -> None:
    """Raises ShapeError for a model that generates no text."""
    architectures = Numbers(config, {}).strings("architectures")
    if config.get("is_encoder_decoder") is True:
        raise ShapeError("is_encoder_decoder", "is true: no decoder-only language model")
    writes = any(word in name for name in architectures for word in _WRITES) or "auto_map" in config
    if architectures and not writes:
        raise ShapeError("architectures", f"is {', '.join(architectures)}: no language model that generates text")
    if not architectures and model_type in _NO_DECODER:
        raise ShapeError("model_type", f"is {model_type}: no decoder-only language model")
    if not model_type and not any(key in config for key in _LAYERS):
        raise ShapeError("", "it has neither model_type nor num_hidden_layers: no config.json of a language model")


def _source(model_type: str, loaded: bool) -> str:
    known = model_type in FAMILIES
    counted = "parameters from the headers of the weights" if loaded else "parameters counted"
    return f"config.json, {counted}" + ("" if known else f"; {model_type or 'no model_type'}: read as a Llama")
