"""The supervised objective and the loss for any linear classifier: cross-entropy, or a sigmoid for each class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prime_train.spec.audio import Audio
from prime_train.trainer.audio.learning.patch_encoder import PatchEncoder


class Supervised(nn.Module):
    """A linear head on the mean patch."""

    def __init__(self, audio: Audio, classes: int) -> None:
        super().__init__()
        self.multi_label = audio.multi_label
        self.head = nn.Linear(audio.encoder.width, classes)

    def forward(self, encoder: PatchEncoder, log_mels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(loss summed over the clips with a label, 0-d; embeddings (B, C)). `labels` (B, L), -1 where there is none.

        A clip without any label does not count.
        """
        embedding = encoder.pool(encoder(log_mels))  # (B, C)
        return sum_label_losses(self.head(embedding), labels, multi_label=self.multi_label), embedding


def sum_label_losses(logits: Tensor, labels: Tensor, *, multi_label: bool) -> Tensor:
    """Summed over the clips that have a label, 0-d fp32. `logits` (B, classes), `labels` (B, L).

    With several labels the loss is the mean over the classes, so that a clip counts as much as with one.
    """
    if not multi_label:
        return F.cross_entropy(logits.float(), labels[:, 0], ignore_index=-1, reduction="sum")
    targets = mark_labels(labels, logits.shape[1])  # (B, classes)
    losses = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").mean(1)  # (B,)
    return (losses * targets.any(1)).sum()


def mark_labels(labels: Tensor, classes: int) -> Tensor:
    """1 for each label that a clip has, else 0: (B, classes) fp32 for labels (B, L)."""
    # One more class than there are takes the places without a label, and is cut off.
    marked = torch.zeros(len(labels), classes + 1, device=labels.device)  # (B, classes + 1)
    return marked.scatter_(1, torch.where(labels < 0, classes, labels), 1.0)[:, :classes]
