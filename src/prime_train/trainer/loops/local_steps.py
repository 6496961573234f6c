"""Trains with replicas that make some steps alone: one flat loop over rounds in each of them.

A round is the steps up to the next multiple of `parallel.sync_every`. It begins with a quorum: its replicas divide the
rows of each step, and at the end join weights and moments, so that all have the same training again. If one of them is
lost in the round, nothing is joined, and the others make the round again with the same rows. All that is saved,
reported or handed to a replica that comes is the training between two rounds. Shapes: B sequences, T positions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from prime_train.core.errors import UserError
from prime_train.events import Phase
from prime_train.spec import RunSpec
from prime_train.spec.answers import fewest_sequences, sequences_in_step
from prime_train.spec.run import lr_ratio
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.data.stream import TakenRows, TrainStream
from prime_train.trainer.loops import replicated
from prime_train.trainer.loops.after_step import UnreadStep
from prime_train.trainer.loops.replicated import ReplicaLoop, Seat
from prime_train.trainer.loops.spikes import StepResult
from prime_train.trainer.loops.step import Votes, launch_step
from prime_train.trainer.replicas.division import cut, divide
from prime_train.trainer.replicas.healing import State
from prime_train.trainer.replicas.life_sign import read_sign
from prime_train.trainer.replicas.round_plan import is_due_in, is_near_end, plan_round
from prime_train.trainer.replicas.rounds import JointWeights, RoundPosition, keep_start, list_moments, read_position

_SIGN_S = 60.0  # between two signs of a long round in the event log, where the supervisor would miss its steps
_LOOK_S = 1.0  # between two looks at the other replicas


def main(attempt: Attempt, stop: StopFlag) -> None:
    """Train in this replica until max_steps; when `stop` is requested, end early."""
    refuse(attempt.run)
    replicated.main(attempt, stop, lambda loop: _Rounds(loop).train(stop))


def refuse(run: RunSpec) -> None:
    """UserError for what rounds cannot do."""
    rows, replicas = fewest_sequences(run), run.parallel.replicas
    unable = {
        "parallel.processes": (run.parallel.group_processes > 1, "a replica with several processes"),
        "batch.with_replicas": (run.batch.with_replicas != "constant", "a batch that follows the replicas"),
        "batch.global_batch": (rows < replicas, f"a step of {rows} sequences for {replicas} replicas"),
    }
    for key, (is_refused, what) in unable.items():
        if is_refused:
            why = "each replica is one process, which makes every step of a round alone on rows of its own"
            fix = "parallel.sync_every = 0, or another value of this key"
            raise UserError(f"parallel.sync_every does not go with {what}", key, why, fix)


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """A column of the steps of a round."""

    round: int  # in the run, from 1


@dataclass(slots=True)
class _OwnStep:
    """A step that this replica has made alone."""

    lr: float
    data_s: float
    result: StepResult

    def read(self) -> StepResult:
        return self.result


class _RoundRows:
    """The rows of a round, which stay the same where it is made again."""

    def __init__(self, stream: TrainStream) -> None:
        self._stream = stream
        self._taken: dict[int, tuple[TakenRows, dict[str, Any]]] = {}  # by step

    def take(self, run: RunSpec, step: int) -> TakenRows:
        if step not in self._taken:
            taken = self._stream.take(sequences_in_step(run, step))
            self._taken[step] = taken, self._stream.position()
        return self._taken[step][0]

    def position(self, step: int) -> dict[str, Any]:
        """Where the stream is after this step."""
        return self._taken[step][1]


class _Rounds:
    """The rounds of one replica. `loop`: its place among the others, as in a run that sums in each step."""

    def __init__(self, loop: ReplicaLoop) -> None:
        self._loop = loop
        self._read_training, self._load_training = loop.quorum.read_state, loop.quorum.load_state
        loop.quorum.read_state, loop.quorum.load_state = self._read_state, self._load_state
        loop.opened.ready.checkpointer.more = lambda: self._position().as_state()
        self._sit(read_position(loop.attempt))

    @property
    def seat(self) -> Seat:
        return self._loop.seat

    def _sit(self, reached: RoundPosition) -> None:
        """Go on from a position between two rounds, whose weights the model has."""
        loop, model = self._loop, self.seat.training.model
        self._rounds, self._rows = reached.rounds, _RoundRows(self.seat.rows.stream)
        self._joint = JointWeights(model, loop.attempt.run.parallel, loop.quorum)
        self._joint.load_outer(reached.outer)
        # The quorum of a round is asked for after the report of the one before it, and no replica begins without it.
        self.seat.live.waits_for_report = False

    def _position(self) -> RoundPosition:
        return RoundPosition(self._rounds, self._joint.read_outer())

    def _read_state(self) -> State:
        return self._read_training() | self._position().as_state()

    def _load_state(self, state: State) -> None:
        self._load_training(state)
        self._sit(RoundPosition(json.loads(state["rounds"]), state.get("outer", {})))

    def train(self, stop: StopFlag) -> None:
        """Make rounds with the others until the last step; then the leader saves."""
        loop = self._loop
        attempt, quorum = loop.attempt, loop.quorum
        checkpointer = loop.opened.ready.checkpointer
        wants_save = False
        loop.await_others()
        while not loop.is_over:
            quorum_s = loop.begin_turn()
            seat = self.seat  # only here, because the quorum may have brought another state
            reader, live = seat.reader, seat.live
            run, training = live.attempt.run, seat.training
            steps = plan_round(loop.reached, run.parallel.sync_every, run.run.max_steps)
            loop.sign.round_steps = len(steps)
            start = keep_start(training.model, training.optimizer)
            own = self._make_steps(steps, stop)
            if len(own) < len(steps):
                quorum.give_up()
                start.restore(training)
                reader.stop = stop.is_requested()
                continue
            waits_s = {"quorum": quorum_s, "checkpoint": checkpointer.take_stall_s()}
            began = time.perf_counter()
            wants_save = wants_save or attempt.take_save_request()
            numbers = _count(own, Votes(stop.is_requested(), live.has_next(), wants_save)).to(training.device.torch)
            if not self._join(steps, numbers):
                start.restore(training)
                continue
            joined_s, wants_save = time.perf_counter() - began, False
            self._record(steps, own, _agree(own, numbers.tolist(), quorum.size), (waits_s, {"joint": joined_s}))
            loop.prepare_saves()
            is_last = steps[-1] >= run.run.max_steps
            saves = not is_last and (reader.save or is_due_in(steps, run.checkpoint.interval_steps))
            reader.save = False
            if saves and not reader.stop and attempt.leads:
                checkpointer.save(training.model, training.optimizer, reader.reached)
            if not is_last and not reader.stop and is_due_in(steps, run.eval.interval_steps):
                loop.evaluate()
        loop.end()

    def _make_steps(self, steps: range, stop: StopFlag) -> list[_OwnStep]:
        """The steps of a round, made alone. Fewer where they would be in vain, or a stop cannot wait for the rest."""
        loop, seat, quorum = self._loop, self.seat, self._loop.quorum
        run, training, spans = seat.live.attempt.run, seat.training, seat.training.spans
        alone = replace(training, world=replace(training.world, between=None))
        before_update = loop.opened.ready.checkpointer.before_update
        own: list[_OwnStep] = []
        pids = self._read_pids()
        began_s = signed_s = looked_s = time.monotonic()
        for step in steps:
            with spans.step(step):
                with spans.host_span("data"):
                    began = time.perf_counter()
                    part = divide(sequences_in_step(run, step), quorum.size, quorum.rank)
                    taken = self._rows.take(run, step)
                    micro_batches = [taken.read(rows) for rows in cut(part, run.batch.micro_batch)]  # (B, T) each
                    data_s = time.perf_counter() - began
                lr = run.optim.lr * lr_ratio(run.schedule, step - 1, run.run.max_steps)
                training.spikes.leaves_out = step in run.optim.skip_steps
                launched = launch_step(alone, micro_batches, lr, loop.opened.work.loss, before_update=before_update)
                own.append(_OwnStep(lr, data_s, launched.read()))
            loop.sign.write("works", loop.reached)
            now_s, left = time.monotonic(), steps[-1] - step
            if now_s - signed_s > _SIGN_S:
                signed_s = now_s
                loop.attempt.emit(Phase(loop.attempt.number, "train", f"step {step} of a round up to {steps[-1]}"))
            if now_s - looked_s > _LOOK_S:
                looked_s = now_s
                if self._read_pids() != pids:
                    break
            step_s = (now_s - began_s) / len(own)
            if stop.is_requested() and not is_near_end(left, step_s, run.prime_train.stop_grace_s):
                break
        return own

    def _read_pids(self) -> list[int | None]:
        """The processes of the round. One that was lost has another one after some seconds."""
        signs = [read_sign(self._loop.folder, number) for number in self._loop.quorum.members]
        return [None if sign is None else sign.pid for sign in signs]

    def _join(self, steps: range, numbers: Tensor) -> bool:
        """Join weights and moments, and sum the numbers. If it returns False, all of them mean nothing."""
        training, quorum = self.seat.training, self._loop.quorum
        moments = list_moments(training.optimizer)
        with training.spans.span("communication"):
            quorum.sum([numbers, *moments])
            for moment in moments:
                moment.div_(quorum.size)
            return self._joint.join(len(steps))

    def _record(
        self,
        steps: range,
        own: Sequence[_OwnStep],
        agreed: Sequence[StepResult],
        waits_s: tuple[dict[str, float], dict[str, float]],
    ) -> None:
        """Take the joined steps as reached, and write their lines. `waits_s`: before the first, and after the last."""
        seat, loop = self.seat, self._loop
        seat.training.spikes.judge_by_record()  # each replica has judged by norms of its own
        self._rounds += 1
        loop.metrics.keep_lines(2 * len(steps))
        column = RoundMetrics(self._rounds)
        for step, mine, result in zip(steps, own, agreed, strict=True):
            waited_s = {"data": mine.data_s, "checkpoint": 0.0}
            waited_s |= waits_s[0] if step == steps[0] else {}
            waited_s |= waits_s[1] if step == steps[-1] else {}
            joined, position = replace(mine, result=result), self._rows.position(step)
            seat.reader.add(UnreadStep(step, mine.lr, joined, position, waited_s, seat.live.position, more=column))
        self._rows = _RoundRows(seat.rows.stream)
        seat.reader.read()
        loop.sign.write("works", loop.reached)


def _count(own: Sequence[_OwnStep], votes: Votes) -> Tensor:
    """The numbers of the steps of this replica and its votes, (4 K + 3,) fp64, to be summed over the replicas."""
    results = [one.result for one in own]
    steps = [(one.tokens, one.loss * one.tokens, one.grad_norm, one.skipped) for one in results]
    return torch.tensor([*(number for each in steps for number in each), *votes], dtype=torch.float64)


def _agree(own: Sequence[_OwnStep], sums: Sequence[float], size: int) -> list[StepResult]:
    """The steps of all replicas together, by the sums of `_count`; the seconds are those of this one.

    The loss is over all rows of the step, each by the weights of its replica. The norm is the mean of the norms.
    """
    agreed = []
    for number, one in enumerate(own):
        tokens, loss, norm, skips = sums[4 * number : 4 * number + 4]
        agreed.append(
            replace(
                one.result,
                tokens=round(tokens),
                loss=loss / max(1.0, tokens),
                grad_norm=norm / size,
                skipped=skips > 0,
            )
        )
    stop, plans, save = sums[-3:]
    agreed[-1] = replace(agreed[-1], stop=stop > 0, ready_ranks=round(plans), save=save > 0)
    return agreed
