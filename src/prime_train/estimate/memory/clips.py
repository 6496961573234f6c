"""Counts memory that an encoder on clips needs beside its blocks. Pure; nothing is fitted.

Counted from prime_train/trainer/audio/learning, and compared with its live tensors by
tests/system/trainer/audio/test_estimate.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.estimate.memory.activations import block_terms, kept_per_layer
from prime_train.estimate.memory.coefficients import Coefficients
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.values import Term
from prime_train.spec.audio import Audio
from prime_train.spec.clip_size import count_seen, size_of

_FP32 = 4.0
_ENCODER = "prime_train/trainer/audio/learning/patch_encoder.py"
_MASKED = "prime_train/trainer/audio/learning/masked_autoencoder.py"
_LEJEPA = "prime_train/trainer/audio/learning/lejepa.py"
_POINTS = 9  # of the integral of SIGReg
_CLASS_NUMBERS = 3.0  # logits, their log-softmax and its gradient


def input_terms(setup: TrainSetup) -> tuple[Term, ...]:
    """What the backward of an encoder keeps of a micro-batch until its end; none without one."""
    audio = setup.audio
    if audio is None:
        return ()
    patches = setup.tokens - _clips(setup, audio) * size_of(audio).sequences * audio.encoder.registers
    turned = 2 * audio.encoder.head_dim
    values = setup.numerics.compute if setup.numerics.autocast else _FP32
    return (
        _product("patches", patches, audio.encoder.patch**2, values, _ENCODER),
        _product("rotations", setup.tokens, turned, _FP32, _ENCODER),
    )


def objective_terms(setup: TrainSetup, k: Coefficients) -> tuple[Term, ...]:
    """What is alive beside the blocks where the backward of an objective begins; none without an encoder."""
    return () if setup.audio is None else tuple(_list_terms(setup, setup.audio, k))


def _list_terms(setup: TrainSetup, audio: Audio, k: Coefficients) -> Iterator[Term]:
    clips = _clips(setup, audio)
    if audio.label_field and audio.classes:
        yield _product("logits", clips, audio.classes, _CLASS_NUMBERS * _FP32, _ENCODER)
    if audio.objective == "masked_autoencoder":
        decoder = _decoder_setup(setup, audio, clips)
        kept = kept_per_layer(decoder, k) * decoder.shape.layers
        hidden = clips * (audio.patches - count_seen(audio))
        yield Term("saved activations of the decoder", kept * decoder.tokens, f"{decoder.tokens} tokens", _MASKED)
        yield from block_terms(decoder, k)
        yield _product("predicted patches and loss", hidden, audio.encoder.patch**2, 4 * _FP32, _MASKED)
    if audio.objective == "lejepa":
        angles = audio.lejepa.views * audio.lejepa.slices * _POINTS
        yield _product("characteristic functions", clips, angles, 3 * _FP32, _LEJEPA)


def _decoder_setup(setup: TrainSetup, audio: Audio, clips: int) -> TrainSetup:
    """The blocks that predict hidden patches, as a training of their own."""
    sizes = audio.masked_autoencoder
    shape = setup.shape._replace(
        layers=sizes.layers,
        hidden_size=sizes.width,
        heads=sizes.heads,
        kv_heads=sizes.heads,
        head_dim=sizes.width // sizes.heads,
        mlp_size=sizes.mlp_size,
    )
    return setup._replace(shape=shape, tokens=clips * audio.patches, ctx_tokens=audio.patches)


def _clips(setup: TrainSetup, audio: Audio) -> int:
    return setup.tokens // size_of(audio).all_tokens


def _product(name: str, rows: float, columns: float, each: float, source: str) -> Term:
    return Term(name, rows * columns * each, f"{rows:g} x {columns:g} x {each:g} B", source)
