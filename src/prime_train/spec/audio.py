"""[audio]: the clips, encoder and objective for run.kind = "audio". Values only; as run.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, Ge, Gt, Le, Lt, NotNegative, Positive

AudioObjective = Literal["supervised", "masked_autoencoder", "lejepa"]
Seek = Literal["exact", "fast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioEncoder:
    """The vision transformer over a spectrogram: rotary time and pitch, query and key norms, SwiGLU."""

    layers: Annotated[Positive, Doc("Encoder blocks.")] = 6
    width: Annotated[Positive, Doc("Width between the blocks.")] = 192
    heads: Annotated[Positive, Doc("Attention heads; width / heads must be divisible by 4.")] = 3
    mlp_ratio: Annotated[float, Gt(0), Doc("Inner SwiGLU width / width.")] = 8 / 3
    patch: Annotated[Positive, Doc("Frames and mels in a patch; frames and mels are multiples.")] = 16
    registers: Annotated[NotNegative, Doc("Tokens without a patch, for what has no place.")] = 4
    layer_scale: Annotated[float, Gt(0), Doc("First gain on each branch in a block (LayerScale).")] = 0.5
    rope_theta: Annotated[float, Gt(0), Doc("Base for rotary time and pitch.")] = 100.0
    norm_eps: Annotated[float, Gt(0), Doc("Epsilon of RMSNorm.")] = 1e-06

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def mlp_size(self) -> int:
        """Inner MLP width: the ratio, rounded up to 16."""
        return -(-round(self.width * self.mlp_ratio) // 16) * 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedAutoencoder:
    """Masked autoencoder: the encoder sees some patches, a small decoder predicts the others."""

    mask_ratio: Annotated[float, Gt(0), Lt(1), Doc("Fraction that is hidden.")] = 0.75
    layers: Annotated[Positive, Doc("Decoder blocks.")] = 2
    width: Annotated[Positive, Doc("Decoder width.")] = 96
    heads: Annotated[Positive, Doc("Decoder heads; width / heads must be divisible by 4.")] = 3
    normalise: Annotated[bool, Doc("The target is each patch with mean 0 and deviation 1.")] = True

    @property
    def mlp_size(self) -> int:
        """Inner SwiGLU width."""
        return 4 * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Lejepa:
    """LeJEPA: views from one clip are to agree, and a micro-batch is to be an isotropic Gaussian."""

    views: Annotated[int, Ge(2), Doc("Views for each clip.")] = 4
    view_ratio: Annotated[float, Gt(0), Le(1), Doc("Length in time as a fraction.")] = 0.5
    drop_ratio: Annotated[float, Ge(0), Lt(1), Doc("Fraction that a view leaves out.")] = 0.25
    gain: Annotated[float, Ge(0), Doc("Deviation in loudness between views.")] = 0.1
    weight: Annotated[float, Gt(0), Lt(1), Doc("Weight on the Gaussian (SIGReg); the agreement has 1 - weight.")] = 0.05
    slices: Annotated[Positive, Doc("Random directions in which a micro-batch is compared with a Gaussian.")] = 256
    projector_width: Annotated[Positive, Doc("Inner projector width.")] = 512
    projection: Annotated[Positive, Doc("Width in which embeddings are compared.")] = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioProbe:
    """What evaluations measure on held-out clips: a linear classifier with stopped gradients, and the neighbours."""

    clips: Annotated[NotNegative, Doc("Held-out clips per evaluation, each by its centre; 0 = no evaluation.")] = 512
    neighbours: Annotated[NotNegative, Doc("Other held-out clips that vote on each label (k-NN); 0 = no k-NN.")] = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """Clips, encoder and objective for audio. The clips themselves come from data.sources."""

    objective: Annotated[
        AudioObjective,
        Doc(
            "`supervised`: the labels. `masked_autoencoder`: hidden patches. `lejepa`: views that agree; it compares "
            "a micro-batch with a Gaussian, so batch.micro_batch counts."
        ),
    ] = "supervised"
    classes: Annotated[
        Positive | None, Doc("How many labels there are, 0 to classes - 1; unset = counted in the data.")
    ] = None
    multi_label: Annotated[bool, Doc("A clip may have several labels: one sigmoid for each class.")] = False
    audio_field: Annotated[str, Doc("Column with the compressed clips.")] = "audio"
    label_field: Annotated[str, Doc("Column with the labels; empty = there are none, and no probe.")] = "label"
    clip_s: Annotated[float, Gt(0), Doc("Seconds in a crop.")] = 5.0
    seek: Annotated[
        Seek,
        Doc(
            "`exact`: a crop is that part of the whole decoded clip, so Opus and MP3 are decoded from their begin. "
            "`fast`: they are decoded from a seek, which costs less and differs a little."
        ),
    ] = "exact"
    sample_rate: Annotated[Positive, Doc("Hertz; other clips are resampled.")] = 32000
    frames: Annotated[Positive, Doc("Frames in a spectrogram, 10 ms each; shorter crops are padded.")] = 512
    mels: Annotated[Positive, Doc("Mel bands in a spectrogram.")] = 128
    mean: Annotated[float, Doc("Mean log-mel, which is subtracted.")] = -7.2
    std: Annotated[float, Gt(0), Doc("Deviation in log-mels; they are divided by 2 std.")] = 4.43
    threads: Annotated[Positive, Doc("Threads in each data.loader_workers.")] = 2
    block_shuffle: Annotated[
        NotNegative, Doc("Files whose rows are permuted together, for network disks; 0 = all files.")
    ] = 0
    on_broken: Annotated[
        Literal["skip", "fail"], Doc("A clip that cannot be decoded: another row takes its place, or the run ends.")
    ] = "skip"
    most_broken: Annotated[float, Ge(0), Le(1), Doc("`skip`: the run ends if a larger fraction is broken.")] = 0.02
    encoder: Annotated[AudioEncoder, Doc("The encoder.")] = AudioEncoder()
    masked_autoencoder: Annotated[MaskedAutoencoder, Doc("The objective `masked_autoencoder`.")] = MaskedAutoencoder()
    lejepa: Annotated[Lejepa, Doc("The objective `lejepa`.")] = Lejepa()
    probe: Annotated[AudioProbe, Doc("What evaluations measure beside the loss.")] = AudioProbe()

    @property
    def grid(self) -> tuple[int, int]:
        """Patches in time and in pitch."""
        return self.frames // self.encoder.patch, self.mels // self.encoder.patch

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]
