"""Scores of probes against plain counts."""

from __future__ import annotations

import pytest
import torch

from prime_train.trainer.audio.learning.probes import accuracy, average_precision, classify, vote_neighbours
from prime_train.trainer.audio.learning.supervised import mark_labels


def test_marks_are_the_labels() -> None:
    marked = mark_labels(torch.tensor([[2, 0], [1, -1], [-1, -1]]), 3)
    assert marked.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]


def test_accuracy_counts_highest_scores() -> None:
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.6, 0.4]])
    assert accuracy(scores, torch.tensor([[1], [0], [1]])) == pytest.approx(2 / 3)


def test_average_precision_is_that_of_the_ranks() -> None:
    # Class 0 at the ranks 1 and 3: (1 + 2/3) / 2. Class 1 at rank 2 of its own order: 1/2. Class 2 is in no clip.
    scores = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.9, 0.0], [0.3, 0.5, 0.0]])
    found = average_precision(scores, torch.tensor([[0, -1], [-1, -1], [0, 1]]))
    assert found == pytest.approx(((1 + 2 / 3) / 2 + 1 / 2) / 2)


def test_linear_probe_sees_standardised_embeddings() -> None:
    source = torch.Generator().manual_seed(4)
    embeddings = 7 + 0.1 * torch.randn(20, 3, generator=source, dtype=torch.float64)
    probe = torch.nn.Linear(3, 2)
    with torch.no_grad():
        found = classify(probe, embeddings)
        scaled = (embeddings - embeddings.mean(0)) / embeddings.std(0, correction=0)
        torch.testing.assert_close(found.float(), probe(scaled.float()), rtol=1e-4, atol=1e-4)


def test_neighbours_vote_without_the_clip_itself() -> None:
    source = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 8, generator=source) * 5
    labels = torch.arange(30) % 3
    embeddings = centres[labels] + 0.1 * torch.randn(30, 8, generator=source)
    votes = vote_neighbours(embeddings, mark_labels(labels.unsqueeze(1), 3), 5)
    torch.testing.assert_close(votes.sum(1), torch.ones(30))
    assert accuracy(votes, labels.unsqueeze(1)) == 1.0
    alone = labels.clone()
    alone[0] = 2  # the only wrong label is that of a clip, which has no vote on itself
    votes = vote_neighbours(embeddings, mark_labels(alone.unsqueeze(1), 3), 5)
    assert int(votes[0].argmax()) == 0
