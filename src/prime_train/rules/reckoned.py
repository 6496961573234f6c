"""The GPUs and the model that a rule's estimate is for, out of facts and registry; else why there are none. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.estimate import shape as shapes
from prime_train.estimate.hardware import hardware_from_devices
from prime_train.estimate.shape import ModelShape, ShapeError
from prime_train.estimate.values import Hardware
from prime_train.facts.facts import Facts
from prime_train.rules.anchor import gpus_asked
from prime_train.rules.base import known
from prime_train.spec import RunSpec


class Unknown(NamedTuple):
    """Why nothing can be said."""

    reason: str


def hardware_of(run: RunSpec, facts: Facts) -> Hardware | Unknown:
    """The GPUs that the run takes, of the kind that there is. `facts.gpus` must be known."""
    gpus = known(facts.gpus)
    found = hardware_from_devices([(gpu.name, gpu.memory_bytes) for gpu in gpus.devices])
    if found is None:
        seen = gpus.devices[0].name if gpus.devices else gpus.reason or "none is there"
        return Unknown(f"there is no GPU whose speed is known ({seen})")
    count = run.parallel.processes if run.is_native else gpus_asked(run)
    return found if count is None else found._replace(gpus=count)


def shape_of(run: RunSpec) -> ModelShape | Unknown:
    """The shape of the model that is trained, else served: by the size fields, or as the registry has it."""
    if run.is_native and run.model.path is None:
        try:
            return shapes.shape_from_run(run, run.tokenizer.vocab_size)
        except ShapeError as error:
            return Unknown(str(error))
    trained = run.trainer.model_name if run.trainer is not None else None
    served = run.inference.model_name if run.inference is not None else None
    name = trained or served or run.model.path
    found = shapes.shape_from_registry(name) if name else None
    return found or Unknown(f"the registry does not have {name or 'the model'}")
