"""What a clip costs an encoder: tokens, weights that see them, and FLOPs. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.spec.audio import Audio


class ClipSize(NamedTuple):
    """A clip as the encoder sees it in a training step: so many sequences with so many tokens each."""

    sequences: int
    tokens: int

    @property
    def all_tokens(self) -> int:
        return self.sequences * self.tokens


def size_of(audio: Audio) -> ClipSize:
    """A sequence has a token for each register and each patch that is seen. Source: trainer/audio/learning."""
    registers = audio.encoder.registers
    match audio.objective:
        case "masked_autoencoder":
            return ClipSize(1, registers + count_seen(audio))
        case "lejepa":
            return ClipSize(audio.lejepa.views, registers + count_kept(audio))
    return ClipSize(1, registers + audio.patches)


def count_seen(audio: Audio) -> int:
    """Patches that a masked autoencoder sees: at least one, and at least one is hidden."""
    return min(max(1, round(audio.patches * (1 - audio.masked_autoencoder.mask_ratio))), max(1, audio.patches - 1))


def count_view_times(audio: Audio) -> int:
    """Patches in time for a LeJEPA view."""
    return max(1, round(audio.grid[0] * audio.lejepa.view_ratio))


def count_kept(audio: Audio) -> int:
    """Patches that a LeJEPA view keeps."""
    return max(1, round(count_view_times(audio) * audio.grid[1] * (1 - audio.lejepa.drop_ratio)))


def count_parameters(audio: Audio) -> int:
    """The weights of the encoder, without those of the objective and the probe. Source: learning/patch_encoder.py."""
    encoder = audio.encoder
    tokens = (encoder.patch**2 + 1 + audio.grid[1] + encoder.registers) * encoder.width
    return tokens + encoder.layers * count_block(audio) + encoder.width


def count_block(audio: Audio) -> int:
    """The weights of one block: matrices, two norms, two gains, and the norms of a head's queries and keys."""
    encoder = audio.encoder
    matrices = 4 * encoder.width**2 + 3 * encoder.width * encoder.mlp_size
    return matrices + 4 * encoder.width + 2 * encoder.head_dim


def flops_per_clip(audio: Audio) -> float:
    """FLOPs of a forward and backward through the encoder, without the objective. Source: PaLM, arXiv 2204.02311, B."""
    encoder, clip = audio.encoder, size_of(audio)
    products = 6.0 * (encoder.layers * count_block(audio) + encoder.patch**2 * encoder.width)
    attention = 12.0 * encoder.layers * encoder.width * clip.tokens
    return clip.all_tokens * (products + attention)
