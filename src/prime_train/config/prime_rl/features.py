"""The features of a prime-rl generation that its keys do not show. Each table in registry/prime_rl/ has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.spec.answers import prime_rl_of

if TYPE_CHECKING:
    from prime_train.config.prime_rl.schema import Features
    from prime_train.spec import RunSpec


def features_of(run: RunSpec) -> Features:
    """The features of the generation of a run's config; those of the newest one if it has none."""
    return features_of_generation(prime_rl_of(run).launch.generation)


def features_of_generation(name: str | None) -> Features:
    """The features of a generation; of the table before it if it has no table. None means the newest generation."""
    # Imported here, because rules about a run.toml import this module and need no table of prime-rl.
    from prime_train.config.prime_rl.schema import generation_before, generations, load, newest

    known = generations()
    return load(newest() if name is None else generation_before(name, known)).features
