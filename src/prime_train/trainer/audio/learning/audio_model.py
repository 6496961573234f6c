"""The model for audio: the encoder, the objective around it, and a probe. Its loss, and its first weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prime_train.spec.audio import Audio
from prime_train.trainer.audio.learning.lejepa import AgreeingViews
from prime_train.trainer.audio.learning.masked_autoencoder import MaskedPatches
from prime_train.trainer.audio.learning.micro_batch import AudioMicroBatch
from prime_train.trainer.audio.learning.patch_encoder import PatchEncoder
from prime_train.trainer.audio.learning.supervised import Supervised, sum_label_losses
from prime_train.trainer.device import Device, copy_to_device
from prime_train.trainer.model.shards import copy_rows, local_part, whole_to_fill


class AudioModel(nn.Module):
    """Encoder, objective and probe. `classes` = 0: the clips have no labels, and there is no probe.

    Encoder blocks may be compiled or sharded one by one; the rest stays in the root.
    """

    def __init__(self, audio: Audio, classes: int) -> None:
        super().__init__()
        self.audio = audio
        self.encoder = PatchEncoder(audio)
        self.objective = _build_objective(audio, classes)
        self.probe = nn.Linear(audio.encoder.width, classes) if classes else None

    @property
    def blocks(self) -> nn.ModuleList:
        return self.encoder.blocks

    @property
    def width(self) -> int:
        return self.audio.encoder.width

    def forward(self, log_mels: Tensor, labels: Tensor | None = None, drawn: tuple[Tensor, ...] = ()) -> Tensor:
        """The loss summed over the clips that count, 0-d; without `labels` embeddings (B, C).

        `log_mels` (B, F, M), `labels` (B, L), `drawn` as `micro_batch.draw` returns them. The probe learns from the
        same clips, and adds nothing to the loss, and no gradient to the encoder.
        """
        if labels is None:
            return self.encoder.pool(self.encoder(log_mels))
        inputs = (labels,) if isinstance(self.objective, Supervised) else drawn
        loss, embedding = self.objective(self.encoder, log_mels, *inputs)  # (), (B, C)
        if self.probe is not None:
            logits = self.probe(standardise(embedding.detach()))  # (B, classes)
            probing = sum_label_losses(logits, labels, multi_label=self.audio.multi_label)  # ()
            loss = loss + (probing - probing.detach())
        assert isinstance(loss, Tensor)
        return loss


def standardise(embeddings: Tensor) -> Tensor:
    """Each number with mean 0 and deviation 1 over these clips, (B, C); one that is the same for all becomes 0.

    A masked autoencoder's clips share most of their embedding. A probe on that learns hardly anything in a short run.
    """
    deviation, mean = torch.std_mean(embeddings, 0, correction=0)
    return (embeddings - mean) / (deviation + 1e-6)


def _build_objective(audio: Audio, classes: int) -> nn.Module:
    match audio.objective:
        case "supervised":
            return Supervised(audio, classes)
        case "masked_autoencoder":
            return MaskedPatches(audio)
        case "lejepa":
            return AgreeingViews(audio)


def audio_loss(model: nn.Module, batch: AudioMicroBatch, device: Device) -> Tensor:
    """The objective's loss, summed over the clips that count, 0-d."""
    log_mels, labels, *drawn = copy_to_device((batch.log_mels, batch.labels, *batch.drawn), device.torch)
    with device.autocast():
        summed: Tensor = model(log_mels, labels, tuple(drawn))  # ()
        return summed


def build_audio(audio: Audio, classes: int, seed: int, device: torch.device | str = "cpu") -> AudioModel:
    """A model with new weights: the same for the same seed on any machine and device."""
    with torch.device("meta"):
        model = AudioModel(audio, classes)
    model.to_empty(device="cpu")
    initialise_audio(model, seed)
    return model.to(device)


@torch.no_grad()
def initialise_audio(model: AudioModel, seed: int) -> None:
    """Linear layers keep the variance of their inputs, tokens and pitches have deviation 0.5; biases and probe: 0.

    The encoder has the same weights for every objective, because it is drawn first. A pitch is as large as the patch
    that it is added to: with 0.02 the mean patch hardly shows which pitches were loud, and a small encoder
    learned clips by heart instead (384 steps with 32 chirps each: 0.12 accuracy held out, and 0.81 after 176 with 0.5).
    """
    # On the CPU, because a GPU's generator gives other numbers.
    source = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        is_probe = name.startswith("probe.")  # at random it would first have to forget, for a hundred steps
        if is_probe or (parameter.ndim < 2 and not name.endswith(".hidden")):
            is_gain, is_zero = name.endswith("_scale"), is_probe or name.endswith(".bias")
            value = 0.0 if is_zero else model.audio.encoder.layer_scale if is_gain else 1.0
            local_part(parameter).fill_(value)
            continue
        weight = whole_to_fill(parameter)
        is_linear = name.endswith(".weight")
        weight.normal_(0.0, weight.shape[-1] ** -0.5 if is_linear else 0.5, generator=source)
        copy_rows(parameter, weight)
