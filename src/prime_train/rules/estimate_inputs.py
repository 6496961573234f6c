"""The GPUs and the model shape for a rule's estimate, from facts and registry. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.estimate.hardware import hardware_from_devices
from prime_train.estimate.model import shape as shapes
from prime_train.estimate.model.shape import ModelShape, ShapeError
from prime_train.estimate.values import Hardware
from prime_train.facts.facts import Facts
from prime_train.rules.rule import known
from prime_train.spec import RunSpec


class Unknown(NamedTuple):
    """Why there is no estimate."""

    reason: str


def hardware_of(run: RunSpec, facts: Facts) -> Hardware | Unknown:
    """The GPU model of this machine, and how many of them the run uses. `facts.gpus` must be known."""
    gpus = known(facts.gpus)
    found = hardware_from_devices([(gpu.name, gpu.memory_bytes) for gpu in gpus.devices])
    if found is None:
        seen = gpus.devices[0].name if gpus.devices else gpus.reason or "none is there"
        return Unknown(f"there is no GPU whose speed is known ({seen})")
    return found if run.gpus is None else found._replace(gpus=run.gpus)


def shape_of(run: RunSpec) -> ModelShape | Unknown:
    """The shape of the trained model, or of the served one if nothing is trained; from size fields or the registry."""
    if run.traits.has_size_fields and run.model.path is None:
        try:
            return shapes.shape_from_run(run, run.tokenizer.vocab_size)
        except ShapeError as error:
            return Unknown(str(error))
    name = run.model_name
    found = shapes.shape_from_registry(name) if name else None
    return found or Unknown(f"the registry does not have {name or 'the model'}")
