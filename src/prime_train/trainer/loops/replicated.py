"""Trains with replicas that outlive each other: one flat loop in each process, over the rows of a `Work`.

Each turn joins a quorum, takes this replica's part of the step's rows, and changes the weights only if every sum of the
step reached all replicas. Else the turn is made again with the same rows, over the replicas that are left. The replica
that leads the quorum saves and reports. Shapes: B sequences, T positions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from prime_train.core.errors import UserError
from prime_train.events import Phase, ReplicasJoined, TrainerStopped
from prime_train.spec.run import lr_ratio
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt, Replica, StopFlag
from prime_train.trainer.batch import MicroBatch, blank_out
from prime_train.trainer.build import announce
from prime_train.trainer.data.stream import TakenRows, TrainStream
from prime_train.trainer.evaluation.evaluate import measure_all
from prime_train.trainer.live_settings import LiveSettings, open_settings
from prime_train.trainer.loops.after_step import StepReader, UnreadStep, adjust, end_early, finish, is_due
from prime_train.trainer.loops.metrics import Metrics, QuorumMetrics
from prime_train.trainer.loops.pretrain import OpenedWork, choose_load, open_work
from prime_train.trainer.loops.spikes import spikes_from
from prime_train.trainer.loops.step import Training, Votes, launch_step
from prime_train.trainer.parallel import NotCommittedError
from prime_train.trainer.replicas.division import cut_for_rank, divide
from prime_train.trainer.replicas.healing import State, load_training, read_training
from prime_train.trainer.replicas.life_sign import SignFile, folder_of, read_sign
from prime_train.trainer.replicas.limits import StepPace
from prime_train.trainer.replicas.quorum import Quorum, QuorumSettings
from prime_train.trainer.replicas.round_plan import choose_sum_limit_s
from prime_train.trainer.replicas.scaling import count_sequences, ramp_from
from prime_train.trainer.replicas.step_rows import Position, StepRows
from prime_train.trainer.saves.checkpoint import TrainPosition

_GATHER_LIMIT_S = 60.0
_GATHER_TURN_S = 0.02


def main(attempt: Attempt, stop: StopFlag, train: Callable[[ReplicaLoop], None] | None = None) -> None:
    """Train in this replica until max_steps; when `stop` is requested, end early.

    `train`: another loop than the one of this module, over what this one has set up.
    """
    assert attempt.replica is not None
    sign = SignFile(folder_of(attempt.run_dir, attempt.number), attempt.replica.number, attempt.rank)
    sign.write("setup", 0)

    def leave() -> None:
        attempt.emit(TrainerStopped(attempt.number, attempt.resume_step))
        sign.write("done" if attempt.leads else "left", attempt.resume_step)

    with stop.exit_on_stop(leave):
        opened = open_work(attempt, choose_load(attempt.run.run.kind))
        refuse(attempt, opened)
    try:
        loop = ReplicaLoop(attempt, attempt.replica, opened, sign)
        loop.train(stop) if train is None else train(loop)
    finally:
        for evaluation in opened.evaluations:
            evaluation.close()


def refuse(attempt: Attempt, opened: OpenedWork) -> None:
    """UserError for what replicas cannot do."""
    run = attempt.run
    unable = {
        "run.kind": run.run.kind not in ("pretrain", "sft"),
        "model.experts": opened.ready.training.routers is not None,
    }
    for key, is_refused in unable.items():
        if is_refused:
            what = f"parallel.replicas = {run.parallel.replicas} does not go with this {key}"
            why = "a replica trains on text, and each step sums the gradients of all"
            raise UserError(what, key, why, "parallel.replicas = 0, or another value of this key")


@dataclass(slots=True)
class Seat:
    """The training from one position on: another one after this replica has taken over the state of another one."""

    training: Training
    rows: StepRows
    live: LiveSettings
    reader: StepReader


class ReplicaLoop:
    """One replica in the loop."""

    def __init__(self, attempt: Attempt, replica: Replica, opened: OpenedWork, sign: SignFile) -> None:
        self.attempt, self._replica, self.opened, self.sign = attempt, replica, opened, sign
        self.metrics = Metrics(attempt, opened.work.unit)
        folder, device = folder_of(attempt.run_dir, attempt.number), opened.ready.training.device.torch
        settings = QuorumSettings(
            folder=folder,
            min_replicas=attempt.run.parallel.min_replicas,
            device=device,
            world=opened.ready.training.world,
        )
        pace = StepPace(choose_sum_limit_s(attempt.run))
        self.quorum = Quorum(replica, settings, sign, self._read_state, self._load_state, pace)
        self.folder = folder
        self._is_prepared = False  # to save
        self.seat = self._sit(opened.ready.reached, opened.rows, None)

    def _sit(self, reached: TrainPosition, rows: Any, agreed: list[dict[str, Any]] | None) -> Seat:
        ready, run = self.opened.ready, self.attempt.run
        spikes = spikes_from(run.optim.on_spike, reached.spikes)
        world = replace(ready.training.world, between=self.quorum)
        training = replace(ready.training, world=world, spikes=spikes)
        live = open_settings(self.attempt, ready.training.world, reached.settings, 0, agreed)
        reader = StepReader(self.attempt, replace(ready, training=training), self.metrics, live, reached)
        return Seat(training, StepRows(self._open_rows, reached.data or None, rows), live, reader)

    def _read_state(self) -> State:
        training, seat = self.seat.training, self.seat
        beside = {"agreed": seat.live.agreed_position(), "lines": self.metrics.show_unwritten()}
        return read_training(training.model, training.optimizer, seat.reader.reached, beside)

    def _load_state(self, state: State) -> None:
        training = self.seat.training
        reached, beside = load_training(training.model, training.optimizer, state)
        self.seat = self._sit(reached, self._open_rows(reached.data or None), beside["agreed"])
        self.metrics.take_unwritten(beside["lines"])

    def train(self, stop: StopFlag) -> None:
        """Take steps with the others until the last one; then the leader saves."""
        attempt, work = self.attempt, self.opened.work
        checkpointer, quorum = self.opened.ready.checkpointer, self.quorum
        wants_save = False
        self.await_others()
        while not self.is_over:
            quorum_s = self.begin_turn()
            seat = self.seat  # only here, because the quorum may have brought another state
            reader, live, step = seat.reader, seat.live, self.reached + 1
            run, training = live.attempt.run, seat.training
            is_last = step >= run.run.max_steps
            saves = not is_last and is_due(step, run.checkpoint.interval_steps)
            evaluates = not is_last and is_due(step, run.eval.interval_steps)
            # Not where the others would wait in a sum for a replica that saves or evaluates.
            quorum.asks_ahead = not (is_last or saves or evaluates)
            with training.spans.step(step):
                with training.spans.host_span("data"):
                    began = time.perf_counter()
                    sequences = count_sequences(run, step, quorum.size)
                    taken = seat.rows.take(run, sequences)
                    part = divide(sequences, quorum.size, quorum.rank)
                    micro_batches = self._read_rows(taken, part, run.batch.micro_batch)  # (B, T) each
                    data_s = time.perf_counter() - began
                ramp = ramp_from(reader.reached.rate).follow(run, step, quorum.size)
                lr = run.optim.lr * lr_ratio(run.schedule, step - 1, run.run.max_steps) * ramp.ratio(step)
                training.spikes.leaves_out = step in run.optim.skip_steps
                wants_save = wants_save or attempt.take_save_request()
                try:
                    launched = launch_step(
                        training,
                        micro_batches,
                        lr,
                        work.loss,
                        votes=Votes(stop.is_requested(), live.has_next(), wants_save),
                        before_update=checkpointer.before_update,
                    )  # (8,), still on the device
                except NotCommittedError:
                    training.optimizer.zero_grad(set_to_none=True)
                    continue
                wants_save = False
                waited_s = {"data": data_s, "checkpoint": checkpointer.take_stall_s(), "quorum": quorum_s}
                position, counted = seat.rows.commit(), QuorumMetrics(quorum.size, sequences)
                reader.add(UnreadStep(step, lr, launched, position, waited_s, live.position, ramp.position(), counted))
                # At once, because another replica may take over the position before the next step.
                reader.read()
                self.prepare_saves()
                saves, reader.save = saves or (reader.save and not is_last), False
                if saves or evaluates:  # on every replica: the files are written beside the next steps
                    quorum.widen()
                if saves and not reader.stop and self._replica.leads:
                    checkpointer.save(training.model, training.optimizer, reader.reached)
            if evaluates and not reader.stop:
                self.evaluate()
        self.end()

    @property
    def is_over(self) -> bool:
        return self.seat.reader.stop or self.reached >= self.seat.live.attempt.run.run.max_steps

    def begin_turn(self) -> float:
        """Join a quorum, and put the settings of the next step in force. Returns the seconds of the quorum.

        Another state may have been brought: then `seat` is another one.
        """
        attempt, quorum = self.attempt, self.quorum
        began = time.perf_counter()
        has_changed = quorum.begin(self.reached)
        quorum_s = time.perf_counter() - began
        seat, live = self.seat, self.seat.live
        if has_changed:
            members = tuple(map(str, quorum.members))
            attempt.emit(ReplicasJoined(attempt.number, self.reached, members, self._replica.count))
        if attempt.leads and not self._is_prepared:
            announce(attempt, seat.training, self.opened.ready.classes)
        live.ranks = seat.training.world.step_ranks
        if live.has_changed(self.reached + 1):  # on every replica at this step
            quorum.widen()  # it may compile
            seat.training = adjust(seat.training, live.attempt.run)
            seat.rows.take_settings(live.attempt.run)
        return quorum_s

    def prepare_saves(self) -> None:
        """After the first update, on the replica that leads."""
        if self._replica.leads and not self._is_prepared:
            self.opened.ready.checkpointer.prepare(self.seat.training.model, self.seat.training.optimizer)
            self._is_prepared = True

    def evaluate(self) -> None:
        """On every replica, so that they come to the next turn together."""
        self.sign.write("saves", self.reached)
        self.metrics.flush()
        measure_all(self.seat.live.attempt, self.seat.training, self.reached, self.opened.evaluations)
        self.attempt.emit(Phase(self.attempt.number, "train"))

    def _open_rows(self, position: Position | None) -> TrainStream:
        world = self.opened.ready.training.world
        rows = self.opened.work.open_rows(world.rank, world.size, position)
        assert isinstance(rows, TrainStream)  # as `refuse` lets pass only text and chats
        return rows

    def _read_rows(self, taken: TakenRows, part: range, micro_batch: int) -> list[MicroBatch]:
        """This rank's micro-batches of the rows that its replica has in the step."""
        world = self.opened.ready.training.world
        own, blank = cut_for_rank(part, world.size, world.rank, micro_batch)
        return [*(taken.read(rows) for rows in own), *(blank_out(taken.read(part[:1])) for _ in range(blank))]

    @property
    def reached(self) -> int:
        """The step that was committed last."""
        return self.seat.reader.reached.step

    def await_others(self) -> None:
        """Wait for the other replicas of a start, so that the first steps have all of them. One may never come.

        Only machine 0 has the signs of all, and the others make no step without it.
        """
        # Connected first: replicas whose heartbeats are known wait for each other at the first step.
        self.quorum.connect(self.reached)
        self.sign.write("ready", self.reached)
        until_s = time.monotonic() + _GATHER_LIMIT_S
        while self._replica.restarts == 0 and self._replica.may_lead and time.monotonic() < until_s:
            others = (read_sign(self.folder, number) for number in range(self._replica.count))
            if all(sign is not None and sign.stage != "setup" for sign in others):
                break
            time.sleep(_GATHER_TURN_S)

    def end(self) -> None:
        """Save and evaluate on the replica that leads; the others leave."""
        attempt, ready, reader = self.attempt, self.opened.ready, self.seat.reader
        training = self.seat.training
        self.quorum.leave()
        training.spans.close()
        self.metrics.close()
        # One that committed the last step alone is saving it already, where the others had to repeat it.
        if self._replica.leads and not ready.training.world.share(self._is_saved_elsewhere()):
            self.sign.write("saves", self.reached)
            attempt.emit(Phase(attempt.number, "checkpoint"))
            if self.reached > attempt.resume_step:
                ready.checkpointer.save(training.model, training.optimizer, reader.reached)
            if reader.stop:
                end_early(attempt, ready, self.reached)
            else:
                finish(
                    self.seat.live.attempt,
                    replace(ready, training=replace(training, world=ready.training.world)),
                    self.opened.evaluations,
                    self.reached,
                    reader.loss,
                    self.opened.work.export,
                )
            self.sign.write("done", self.reached)
        else:
            ready.checkpointer.finish()
            self.sign.write("left", self.reached)
        parallel.leave(ready.training.world)

    def _is_saved_elsewhere(self) -> bool:
        others = (number for number in range(self._replica.count) if number != self._replica.number)
        signs = (read_sign(self.folder, number) for number in others)
        return any(sign is not None and sign.stage in ("saves", "done") and sign.step >= self.reached for sign in signs)
