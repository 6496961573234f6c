"""The features of a prime-rl generation that its keys do not show. Each table in registry/prime_rl/ has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from prime_train.spec.answers import prime_rl_of

if TYPE_CHECKING:
    from prime_train.spec import RunSpec

_TYPES: dict[str, type[Any]] = {"bool": bool, "int": int, "str": str, "tuple[str, ...]": tuple}


class Features(NamedTuple):
    """The features of one generation. docs/prime_rl_tables.py has their values and sources."""

    vllm: str  # the version of vLLM that is installed with it
    names_runs: bool  # a run has a name, and a folder of its own below output_dir
    cleans_by_default: bool  # `rl` deletes the files of an earlier run unless the config forbids it
    head_chunk_vocab: int  # columns of the logits that the RL trainer computes at once by default; 0 = all
    slow_moe_attention: bool  # `sft` of a mixture of experts is as slow as FlashAttention 2 with any kernel
    vision_needs_bf16: bool  # a model with [model.vlm] is refused unless it is trained in bf16
    refuses_offline_shared_run: bool  # W&B cannot be offline where trainer and orchestrator share a run
    reserved_environment_names: tuple[str, ...]  # names that no environment may have

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Features:
        """The features in a table file. Raises ValueError if one is missing, unknown or of another type."""
        if values.keys() != set(cls._fields):
            raise ValueError(f"features: expected {', '.join(cls._fields)}; found {', '.join(values)}")
        given: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in values.items()}
        for name, written in cls.__annotations__.items():
            value, expected = given[name], _TYPES[str(getattr(written, "__forward_arg__", written))]
            if type(value) is not expected or (expected is tuple and not all(isinstance(item, str) for item in value)):
                raise ValueError(f"features.{name} = {value!r}: expected {expected.__name__}")
        return cls(**given)


def features_of(run: RunSpec) -> Features:
    """The features of the generation of a run's config; those of the newest one if it has none."""
    return features_of_generation(prime_rl_of(run).launch.generation)


def features_of_generation(name: str | None) -> Features:
    """The features of a generation; of the table before it if it has no table. None means the newest generation."""
    from prime_train.config.prime_rl.schema import generation_before, generations, load, newest

    known = generations()
    return load(newest() if name is None else generation_before(name, known)).features
