"""The backend of a run.toml, by what it is a run of."""

from __future__ import annotations

from prime_train.backends import bundled, vllm
from prime_train.backends.backend import Backend
from prime_train.spec import RunSpec


def backend(run: RunSpec) -> Backend:
    """The bundled trainer, with the server of a run that has one; or that server alone."""
    return vllm.BACKEND if run.run.kind == "serve" else bundled.BACKEND
