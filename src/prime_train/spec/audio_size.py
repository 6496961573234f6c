"""Counts the weights, tokens and operations of a run on audio, for estimates and the trainer alike. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.spec.audio import Audio


class Stack(NamedTuple):
    """Blocks of one width, and the sequences that they see for each clip."""

    layers: int
    width: int
    heads: int
    mlp_size: int
    tokens: int  # of a sequence
    sequences: int = 1  # for each clip

    @property
    def parameters(self) -> int:
        """Four projections, three of the MLP, two norms and two gains, and the norms of heads, in each block."""
        matrices = 4 * self.width**2 + 3 * self.width * self.mlp_size
        return self.layers * (matrices + 4 * self.width + 2 * (self.width // self.heads))

    @property
    def flops(self) -> float:
        """Operations to train on one clip: three times two for each weight and token, and attention."""
        matrices = 4 * self.width**2 + 3 * self.width * self.mlp_size
        each = 6.0 * matrices * self.tokens + 12.0 * self.width * self.tokens**2
        return self.layers * self.sequences * each


def list_stacks(audio: Audio) -> tuple[Stack, ...]:
    """The encoder, and the decoder of a masked autoencoder."""
    sizes, hidden = audio.encoder, audio.masked_autoencoder
    seen, sequences = audio.patches, 1
    if audio.objective == "masked_autoencoder":
        seen = count_seen(audio)
    elif audio.objective == "lejepa":
        seen, sequences = count_kept(audio), audio.lejepa.views
    tokens = seen + sizes.registers
    encoder = Stack(sizes.layers, sizes.width, sizes.heads, sizes.mlp_size, tokens, sequences)
    if audio.objective != "masked_autoencoder":
        return (encoder,)
    return encoder, Stack(hidden.layers, hidden.width, hidden.heads, hidden.mlp_size, audio.patches)


def count_seen(audio: Audio) -> int:
    """Patches that a masked autoencoder sees: at least one, and at least one is hidden."""
    return min(max(1, round(audio.patches * (1 - audio.masked_autoencoder.mask_ratio))), audio.patches - 1)


def count_view_frames(audio: Audio) -> int:
    """Patches in time of a view of LeJEPA."""
    return max(1, round(audio.grid[0] * audio.lejepa.view_ratio))


def count_kept(audio: Audio) -> int:
    """Patches of a view of LeJEPA."""
    return max(1, round(count_view_frames(audio) * audio.grid[1] * (1 - audio.lejepa.drop_ratio)))


def count_encoder(audio: Audio) -> int:
    """Weights of the encoder: what an export has."""
    sizes = audio.encoder
    tokens = sizes.patch**2 + 1 + audio.grid[1] + sizes.registers + 1  # with the bias and the last norm
    return tokens * sizes.width + list_stacks(audio)[0].parameters


def count_parameters(audio: Audio, classes: int) -> int:
    """Weights that a run trains: encoder, objective and probe."""
    width, probe = audio.encoder.width, classes * (audio.encoder.width + 1)
    if audio.objective == "supervised":
        return count_encoder(audio) + 2 * probe
    if audio.objective == "lejepa":
        inner, outer = audio.lejepa.projector_width, audio.lejepa.projection
        return count_encoder(audio) + (width + 3) * inner + (inner + 1) * outer + probe
    own, pixels = audio.masked_autoencoder.width, audio.encoder.patch**2
    ends = (width + 1) * own + (own + 1) * pixels + (2 + audio.grid[1]) * own
    return count_encoder(audio) + list_stacks(audio)[1].parameters + ends + probe


def flops_per_clip(audio: Audio) -> float:
    """Operations to train on one clip, with those of the patch embedding and without heads."""
    stacks = list_stacks(audio)
    seen = (stacks[0].tokens - audio.encoder.registers) * stacks[0].sequences
    return 6.0 * audio.encoder.patch**2 * audio.encoder.width * seen + sum(stack.flops for stack in stacks)
