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
    return count_ends(audio) + audio.encoder.layers * count_block(audio)


def count_ends(audio: Audio) -> int:
    """The weights of the encoder outside its blocks: of patches, pitches and registers, and the last norm."""
    encoder = audio.encoder
    return (encoder.patch**2 + 1 + audio.grid[1] + encoder.registers + 1) * encoder.width


def count_block(audio: Audio) -> int:
    """The weights of one block: matrices, two norms, two gains, and the norms of a head's queries and keys."""
    encoder = audio.encoder
    return _count_block(encoder.width, encoder.mlp_size, encoder.heads)


def _count_block(width: int, mlp_size: int, heads: int) -> int:
    return 4 * width**2 + 3 * width * mlp_size + 4 * width + 2 * (width // heads)


def count_objective(audio: Audio) -> int:
    """The weights of objective and probe. Those of classes are not known where `classes` is unset.

    Source: trainer/audio/learning, a module for each objective.
    """
    encoder, classes = audio.encoder.width, audio.classes or 0
    linear = (encoder + 1) * classes if audio.label_field else 0
    match audio.objective:
        case "masked_autoencoder":
            sizes, patch = audio.masked_autoencoder, audio.encoder.patch**2
            blocks = sizes.layers * _count_block(sizes.width, sizes.mlp_size, sizes.heads)
            return linear + blocks + (encoder + 1 + 1 + audio.grid[1] + 1 + patch) * sizes.width + patch
        case "lejepa":
            projector, last = audio.lejepa.projector_width, audio.lejepa.projection
            return linear + (encoder + 1 + 2) * projector + (projector + 1) * last
    return 2 * linear


def count_outside_flops(audio: Audio) -> float:
    """FLOPs of a forward for a clip outside the blocks of the encoder: patches, and the objective's own products."""
    encoder, clip = audio.encoder, size_of(audio)
    patches = 2.0 * (clip.all_tokens - clip.sequences * encoder.registers) * encoder.patch**2 * encoder.width
    match audio.objective:
        case "masked_autoencoder":
            sizes, seen = audio.masked_autoencoder, count_seen(audio)
            block = _count_block(sizes.width, sizes.mlp_size, sizes.heads) + 2 * audio.patches * sizes.width
            ends = encoder.width * seen + (audio.patches - seen) * encoder.patch**2
            return patches + 2.0 * (audio.patches * sizes.layers * block + ends * sizes.width)
        case "lejepa":
            sizes_of = audio.lejepa
            projector = (encoder.width + sizes_of.projection) * sizes_of.projector_width
            return patches + 2.0 * clip.sequences * (projector + sizes_of.projection * sizes_of.slices)
    return patches + 2.0 * encoder.width * (audio.classes or 0)


def flops_per_clip(audio: Audio) -> float:
    """FLOPs of a forward and backward through the encoder, without the objective. Source: PaLM, arXiv 2204.02311, B."""
    encoder, clip = audio.encoder, size_of(audio)
    products = 6.0 * (encoder.layers * count_block(audio) + encoder.patch**2 * encoder.width)
    attention = 12.0 * encoder.layers * encoder.width * clip.tokens
    return clip.all_tokens * (products + attention)
