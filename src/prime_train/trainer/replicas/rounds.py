"""Joins the weights of replicas after steps that each made alone, by torchft's LocalSGD and DiLoCo. Trains nothing.

Both classes begin a quorum when a round ends, over the replicas that are there by then. The rows of one that was lost
in the round would be lost with it, and one that has just come would take weights that are not joined yet. So here the
quorum is before the round (`Quorum.begin`), and the classes see it through `_RoundManager`: what they sum and commit is
over the replicas that began the round together. They watch an optimizer for the end of a round. It is one that changes
nothing, `_RoundEnd`, so the loop decides how many steps a round has, and may change that between two rounds.

DiLoCo's weights of the last round are the weights at the start of this one, so neither a checkpoint nor a replica that
comes needs a copy of them: only the momentum of the outer optimizer is beside the training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchft.local_sgd import DiLoCo, LocalSGD

from prime_train import spec
from prime_train.trainer import parallel, seed
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.loops.step import Training
from prime_train.trainer.parallel import NotCommittedError
from prime_train.trainer.replicas.quorum import Quorum

State = dict[str, Any]
_MOMENTUM = "momentum_buffer"  # as torch's SGD names it
_ROUNDS, _OUTER = "rounds", "outer"  # names in a checkpoint


class _RoundManager:
    """What torchft's classes see of the quorum in which a round was begun."""

    _use_async_quorum = False

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.steps = 1  # of the round
        self.committed = False

    def start_quorum(self) -> None:
        """It was started before the round."""

    def allow_state_dict_read(self) -> None:
        """Nothing reads the training in a round: another replica gets it only while a quorum begins."""

    def disallow_state_dict_read(self) -> None:
        """See above."""

    def register_state_dict_fn(self, key: str, load: Callable[[State], None], read: Callable[[], State]) -> None:
        """`JointWeights` hands over what a replica that comes needs."""

    def current_step(self) -> int:
        """By it DiLoCo chooses a part of the model, and there is one."""
        return 0

    def allreduce(self, tensor: Tensor, should_quantize: bool = False) -> Any:
        """The mean of the tensor over the replicas of the round, in place."""
        assert not should_quantize
        return self._quorum.average(tensor)

    def should_commit(self) -> bool:
        """Whether each sum of the round has reached all replicas."""
        try:
            self._quorum.commit(self.steps)
        except NotCommittedError:
            self.committed = False
        else:
            self.committed = True
        return self.committed


class _RoundEnd(torch.optim.Optimizer):
    """An optimizer that changes nothing. torchft's classes join the weights after a step of it."""

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        super().__init__(weights, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Mark the end of a round."""


class JointWeights:
    """The trained weights of a model, which all replicas have in common after each round."""

    def __init__(self, model: nn.Module, layout: spec.Parallel, quorum: Quorum) -> None:
        named = parallel.unwrap(model).named_parameters()
        self._weights = {name: weight for name, weight in named if weight.requires_grad}
        weights = [*self._weights.values()]
        # A model with adapters sends only these.
        part, self._round_end = nn.ParameterList(weights), _RoundEnd(weights)
        manager: Any = _RoundManager(quorum)
        self._manager: _RoundManager = manager
        self._outer: torch.optim.SGD | None = None
        if layout.sync == "diloco":
            # With Nesterov's momentum, as in DiLoCo, arXiv 2311.08105, s. 3.
            momentum = layout.outer_momentum
            self._outer = torch.optim.SGD(weights, lr=layout.outer_lr, momentum=momentum, nesterov=momentum > 0)
            # It keeps the weights of the last round on the CPU, and takes them from the model here.
            DiLoCo(manager, [part], self._round_end, self._outer, sync_every=1).__enter__()
        else:
            LocalSGD(manager, part, self._round_end, sync_every=1).__enter__()

    def join(self, steps: int) -> bool:
        """Join the weights after as many steps; returns whether all replicas of the round took part.

        If not, the weights mean nothing.
        """
        self._manager.steps, self._manager.committed = steps, False
        self._round_end.step()
        return self._manager.committed

    def read_outer(self) -> dict[str, Tensor]:
        """The momentum of the outer optimizer, by weight. Empty without one, and before the first round."""
        if self._outer is None:
            return {}
        found = {name: self._outer.state[weight].get(_MOMENTUM) for name, weight in self._weights.items()}
        return {name: momentum for name, momentum in found.items() if momentum is not None}

    def load_outer(self, outer: Mapping[str, Tensor]) -> None:
        """Go on with what `read_outer` returned. Without an outer optimizer it is dropped."""
        if self._outer is not None:
            for name, momentum in outer.items():
                weight = self._weights[name]
                self._outer.state[weight][_MOMENTUM] = momentum.to(weight.device, copy=True)


@dataclass(frozen=True, slots=True)
class RoundPosition:
    """What rounds add to a checkpoint. `outer`: see `JointWeights.read_outer`."""

    rounds: int  # that were joined since the run began
    outer: dict[str, Tensor]

    def as_state(self) -> State:
        """By the names of a checkpoint."""
        return {_ROUNDS: json.dumps(self.rounds), **({_OUTER: self.outer} if self.outer else {})}


def read_position(attempt: Attempt) -> RoundPosition:
    """From the checkpoint of the attempt. One of a run without rounds has none, and neither has a start."""
    if not attempt.resume_step:
        return RoundPosition(0, {})
    from prime_train.trainer.saves.dcp_reader import SavedTensors  # imports DCP, which takes half a second

    saved = SavedTensors(attempt.run_dir.checkpoint(attempt.resume_step))
    rounds = json.loads(saved.load_text(_ROUNDS)) if _ROUNDS in saved.list_texts() else 0
    outer = {stored.name: saved.load(f"{_OUTER}.{stored.name}") for stored in saved.list_tensors(f"{_OUTER}.")}
    return RoundPosition(rounds, outer)


def list_moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The states of an optimizer, in one order on all replicas."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    states = [optimizer.state[weight] for weight in weights if weight in optimizer.state]
    return [state[name] for state in states for name in sorted(state)]


@dataclass(frozen=True, slots=True)
class RoundStart:
    """A copy of what the steps of a round change, on the CPU: a round that was not joined is made again."""

    weights: list[tuple[Tensor, Tensor]]
    moments: dict[Tensor, dict[str, Tensor]]
    generators: dict[str, str]

    def restore(self, training: Training) -> None:
        """Put it back."""
        optimizer = training.optimizer
        with torch.no_grad():
            for weight, kept in self.weights:
                weight.copy_(kept)
            for weight in [*optimizer.state]:
                if weight not in self.moments:  # the first step makes them
                    del optimizer.state[weight]
                    continue
                for name, kept in self.moments[weight].items():
                    optimizer.state[weight][name].copy_(kept)
        optimizer.zero_grad(set_to_none=True)
        training.spikes.judge_by_record()
        seed.set_rng_state(self.generators)


def keep_start(model: nn.Module, optimizer: torch.optim.Optimizer) -> RoundStart:
    weights: list[tuple[Tensor, Tensor]] = [
        (weight, _copy(weight)) for weight in model.parameters() if weight.requires_grad
    ]
    moments = {
        weight: {name: _copy(value) for name, value in state.items()} for weight, state in optimizer.state.items()
    }
    return RoundStart(weights, moments, seed.rng_state())


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
