"""Tries the transformations that a config allows on the first local documents, in a child. Runs the user's code."""

from __future__ import annotations

from prime_train.core.python_child import own_module
from prime_train.facts.data_lengths import find_files, local_data
from prime_train.facts.facts import NotKnown, TransformTrial
from prime_train.facts.find_files import EndlessSearchError
from prime_train.facts.probe_process import read_answer
from prime_train.spec import RunSpec


def try_transforms(run: RunSpec, deadline_s: float) -> tuple[TransformTrial, ...] | NotKnown:
    """A trial of each of data.allowed_transforms; NotKnown if the child does not answer."""
    names = run.data.allowed_transforms
    if not names:
        return ()
    try:
        named = find_files(data for data in local_data(run) if data.field.startswith("data.") and data.columns)
    except EndlessSearchError:  # DAT003 reports it
        named = {}
    sources = [{"files": files[:1], "columns": data.columns} for data, files in named.items()]
    request = {"names": names, "sources": sources}
    command = own_module("prime_train.facts.transforms_program")
    answer = read_answer("a transformation", command, deadline_s, request)
    if isinstance(answer, NotKnown):
        return answer
    fields = (f"data.allowed_transforms.{number}" for number in range(len(names)))
    return tuple(TransformTrial(field, **found) for field, found in zip(fields, answer["trials"], strict=True))
