"""Trains a language model on the rewards of its own answers, in one flat loop. Source: GRPO, arXiv 2402.03300, s. 4.

Rank 0 collects the rollouts and shares those of a step with the other ranks. While a step trains, the rollouts of the
next rl.max_behind_steps steps are generated, so their weights lack that many updates at most.

The weights before step s have the version s. With max_behind_steps of at most 1, the engine has no rollouts in progress
when it gets new weights, and a checkpoint waits for those in progress. So a run that is killed and resumed makes the
same rollouts with the same weights as a run that is not; with the local engine and one thread, its steps are bit-equal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from prime_train.events import Phase, TrainerStopped
from prime_train.spec.answers import rl_settings, rollout_engine
from prime_train.spec.run import lr_ratio
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.build import Ready, TextModel, announce, gather_weights, get_ready, join
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.evaluation.evaluate import measure_all
from prime_train.trainer.live_settings import open_settings
from prime_train.trainer.loops.after_step import adjust, end_early, export_text, finish, is_due, report_spike
from prime_train.trainer.loops.metrics import Metrics, step_metrics
from prime_train.trainer.loops.step import IDLE, Training, Votes, loss_sum, take_idle_step, take_step
from prime_train.trainer.rl.batch import JudgedRollout, share_prompts, share_rows, to_imitation_batch, to_policy_batch
from prime_train.trainer.rl.loss import PolicyLoss, load_reference, save_reference
from prime_train.trainer.rl.rollouts.collector import Collector, open_collector, report_waiting
from prime_train.trainer.rl.rollouts.groups import Selection
from prime_train.trainer.rl.rollouts.rollout import RolloutAlarms
from prime_train.trainer.rl.rollouts.rollout_queue import RolloutWait
from prime_train.trainer.rl.rollouts.task_targets import evaluate_tasks
from prime_train.trainer.saves.checkpoint import TrainPosition

_COMPARED_ROLLOUTS = 8  # first ones of a coming step, whose probabilities the trainer compares with the engine's
_STOP_WAIT_RATIO = 0.25  # of the grace period of a stop, for the rollouts in progress


@dataclass(frozen=True, slots=True)
class _Waits:
    """Columns of a step's line of metrics."""

    waiting: int  # finished rollouts of coming steps
    rollouts_s: float  # wait for rollouts
    weights_s: float  # weights to the engine


@dataclass(slots=True)
class _Phases:
    """The seconds of the phases of one step."""

    training: Training
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, component: str) -> Iterator[None]:
        began = time.perf_counter()
        with self.training.spans.host_span(component):
            yield
        self.seconds[component] = self.seconds.get(component, 0.0) + time.perf_counter() - began


def main(attempt: Attempt, stop: StopFlag) -> None:
    """Train until max_steps; when `stop` is requested, save a checkpoint and end early."""
    with stop.exit_on_stop(lambda: attempt.emit(TrainerStopped(attempt.number, attempt.resume_step))):
        ready, collector = _set_up(attempt)
    try:
        _train(attempt, ready, collector, stop)
    finally:
        if collector is not None:
            collector.closing.close()


def _set_up(attempt: Attempt) -> tuple[Ready[TextModel], Collector | None]:
    """What the loop trains with, and on rank 0 what collects its rollouts."""
    run = attempt.run
    device, world = join(attempt)
    if rollout_engine(run) == "local" and device.torch.type == "cpu" and rl_settings(run).max_behind_steps > 0:
        # The engine generates while the trainer computes. With as many threads as cores for both, each waits for the
        # other's threads in every operation.
        torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    attempt.emit(Phase(attempt.number, "tokenizer"))
    prepared = load_chat_tokenizer(run) if world.rank == 0 else None  # rank 0 caches it
    world.wait()
    chat = prepared or load_chat_tokenizer(run)
    ready = get_ready(chat.tokenizer, attempt, device, world)
    attempt.emit(Phase(attempt.number, "data"))
    if world.rank != 0:
        return ready, None
    return ready, open_collector(attempt, chat, ready.known.config, device, ready.reached.data or None)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Compares the probabilities of engine and trainer, before each update, over rollouts of the step's weights."""

    ready: Ready[TextModel]
    collector: Collector | None
    waiting: RolloutWait

    def before_update(self, step: int, loss: PolicyLoss, phases: _Phases) -> None:
        """Compare the first rollouts of the next step, not those that happen to be finished. Every process calls it."""
        collector, training = self.collector, self.ready.training
        if not parallel.is_sharded(training.model):
            with phases("rollouts"):
                # Always the same ones, so that a run that was killed measures the same value.
                finished = collector is not None and collector.queue.finish(step + 1, self.waiting, _COMPARED_ROLLOUTS)
                training.world.share(None)  # the other ranks wait here, because NCCL allows no wait of minutes
            rollouts = collector.queue.list_finished(step, _COMPARED_ROLLOUTS) if collector and finished else []
            # Coming steps may have other temperatures, and a batch has one.
            for temperature in dict.fromkeys(rollout.temperature for rollout in rollouts):
                same = [JudgedRollout(rollout, 0.0) for rollout in rollouts if rollout.temperature == temperature]
                rows = share_prompts(same, len(same))
                loss.compare(parallel.unwrap(training.model), to_policy_batch(rows, step), training.device)
        self.ready.checkpointer.before_update()


def _train(attempt: Attempt, ready: Ready[TextModel], collector: Collector | None, stop: StopFlag) -> None:
    policy, training, reached = rl_settings(attempt.run), ready.training, ready.reached
    checkpointer, world = ready.checkpointer, training.world
    metrics = Metrics(attempt)
    alarms = RolloutAlarms(attempt.number, policy.max_mismatch_kl)
    waiting = RolloutWait(stop.is_requested, report_waiting(attempt))
    comparison = _Comparison(ready, collector, waiting)
    held_out_tasks = _HeldOutTasks(collector, waiting)
    live = open_settings(attempt, world, reached.settings, behind_steps=0)
    policy_loss: PolicyLoss | None = None
    result = IDLE
    announce(attempt, training, ready.classes)
    step = reached.step
    while step < live.attempt.run.run.max_steps:
        step += 1
        if live.has_changed(step):  # on every rank at this step
            training = adjust(training, live.attempt.run)
            if collector is not None:
                collector.queue.take_settings(live.attempt.run)
        attempt = live.attempt
        run = attempt.run
        share = partial(share_rows, micro_batch=run.batch.micro_batch, rank=world.rank, ranks=world.size)
        phases, of_rollouts = _Phases(training), None
        lr = run.optim.lr * lr_ratio(run.schedule, step - 1, run.run.max_steps)
        with training.spans.step(step):
            if step <= policy.warmup_steps:  # imitate solved tasks
                with phases("data"):
                    solved = world.share(() if collector is None else collector.warmup.draw(step))
                    imitated = [to_imitation_batch(rows) for rows in share(solved)]
                # A step is read at once in this loop: the engine gets its weights before the next one begins.
                before = checkpointer.before_update
                votes = Votes(stop.is_requested(), live.has_next(), attempt.take_save_request())
                result = take_step(training, imitated, lr, loss_sum, votes=votes, before_update=before)
            else:
                # Rank 0 alone has rollouts. What it selects is shared, so that every rank takes its part of one step.
                selection = _collect(attempt, collector, step, waiting, phases)
                if selection is None:  # a stop was requested before the rollouts were finished
                    result = replace(IDLE, stop=True)
                    break
                with phases("data"):
                    policy_loss = policy_loss or _open_loss(attempt, ready, step)
                    policy_loss.take_settings(rl_settings(run))
                    rows = share_prompts(selection.samples, run.batch.micro_batch)
                    batches = [to_policy_batch(part, step) for part in share(rows)]
                # The comparison needs the weights that made the rollouts, so it runs directly before they change.
                compare = partial(comparison.before_update, step, policy_loss, phases)
                votes = Votes(stop.is_requested(), live.has_next(), attempt.take_save_request())
                if selection.samples:
                    result = take_step(training, batches, lr, policy_loss, votes=votes, before_update=compare)
                else:  # the rewards of each group are equal
                    compare()
                    result = take_idle_step(training, votes)
                stats = policy_loss.take_stats(world, training.device)
                waiting_rollouts = collector.queue.waiting if collector else 0
                waits = _Waits(waiting_rollouts, phases.seconds["rollouts"], phases.seconds["weights"])
                of_rollouts = (selection.counts, stats, waits)
        # Before the metrics: a loss that ends the run has no line of them.
        report_spike(attempt, training.spikes, step, lr, result)
        live.hear(step, result.ready_ranks)
        tokens_seen, spikes = reached.tokens_seen + result.tokens, training.spikes.position()
        reached = TrainPosition(step, tokens_seen, spikes=spikes, settings=live.position)
        waited_s = {**phases.seconds, "checkpoint": checkpointer.take_stall_s()}
        line = step_metrics(training, reached, result, lr, ready.flops_per_token, waited_s)
        if of_rollouts is None:
            metrics.add(line, result.expert_load)
        else:
            counts, stats, _ = of_rollouts
            metrics.add(line, *of_rollouts, result.expert_load, reward=counts.reward)
            for change in alarms.check(step, counts.reward, stats.mismatch_kl, learned=result.tokens > 0):
                attempt.emit(change)
        if step == attempt.resume_step + 1:
            checkpointer.prepare(training.model, training.optimizer)
        if result.stop:
            break
        if step < run.run.max_steps and (result.save or is_due(step, run.checkpoint.interval_steps)):
            _save(ready, collector, reached, waiting)
        if step < run.run.max_steps and is_due(step, run.eval.interval_steps):
            metrics.flush()
            measure_all(attempt, training, step, (held_out_tasks,))
            attempt.emit(Phase(attempt.number, "train"))
    training.spans.close()
    metrics.close()

    attempt.emit(Phase(attempt.number, "checkpoint"))
    if result.stop:
        # The rest of the grace period is for the save.
        within_s = time.monotonic() + _STOP_WAIT_RATIO * attempt.run.prime_train.stop_grace_s
        waiting = RolloutWait(lambda: time.monotonic() > within_s)
    if reached.step > attempt.resume_step:
        _save(ready, collector, reached, waiting)
    if result.stop:
        end_early(attempt, ready, reached.step)
    else:
        evaluations = (_HeldOutTasks(collector, RolloutWait(lambda: False)),)  # the last one is not left out for a stop
        finish(attempt, ready, evaluations, reached.step, result.loss, export_text)
    parallel.leave(world)


def _collect(
    attempt: Attempt, collector: Collector | None, step: int, waiting: RolloutWait, phases: _Phases
) -> Selection | None:
    """What `step` learns from, on every rank; None if a stop was requested before its rollouts were finished."""
    run, training = attempt.run, phases.training
    behind = rl_settings(run).max_behind_steps
    with phases("rollouts"):
        # The rollouts that may lack updates, before the engine gets the weights of the step.
        goes_on = collector is None or collector.queue.finish(step if behind else step - 1, waiting)
        if not training.world.share(goes_on):
            return None
    with phases("weights"):
        _push_weights(training, collector, step)
    with phases("rollouts"):
        selection = None
        if collector is not None:
            # Before the step takes its own rollouts, so that the engine is never without work.
            collector.queue.submit(step, min(step + behind, run.run.max_steps))
            selection = collector.take(attempt, step, waiting)
        return training.world.share(selection)


def _push_weights(training: Training, collector: Collector | None, version: int) -> None:
    """Give the engine the weights before step `version`, if it does not have them."""
    # Every rank takes part in gathering a sharded model, so all ranks follow the answer of rank 0.
    if not training.world.share(collector is not None and collector.engine.version == version):
        weights = gather_weights(training.model)
        if collector is not None:
            collector.engine.update(weights, version)


def _open_loss(attempt: Attempt, ready: Ready[TextModel], step: int) -> PolicyLoss:
    """The loss, with the reference model if it is needed. The first RL step writes the reference's weights."""
    policy, training = rl_settings(attempt.run), ready.training
    if policy.kl_coef == 0:
        return PolicyLoss(policy)
    if step == policy.warmup_steps + 1:
        save_reference(attempt.run_dir, training)
    return PolicyLoss(policy, load_reference(attempt.run_dir, ready.known.config, training, attempt.run.parallel))


def _save(ready: Ready[TextModel], collector: Collector | None, reached: TrainPosition, waiting: RolloutWait) -> None:
    """Save a checkpoint with the rollouts of the next steps. Those in progress are awaited, as the next step would."""
    position: dict[str, Any] = {}
    training = ready.training
    if collector is not None:
        with training.spans.host_span("rollouts"):
            collector.queue.finish(sys.maxsize, waiting)
        position = collector.queue.position()
    ready.checkpointer.save(training.model, training.optimizer, replace(reached, data=position))


@dataclass(frozen=True, slots=True)
class _HeldOutTasks:
    """Held-out tasks, answered by the engine of the rollouts."""

    collector: Collector | None
    waiting: RolloutWait

    def measure(self, attempt: Attempt, training: Training, step: int) -> None:
        """Let the model after `step` answer; nothing if a stop was requested before the rollouts were finished."""
        collector = self.collector
        if not training.world.share(collector is None or collector.queue.finish(sys.maxsize, self.waiting)):
            return
        _push_weights(training, collector, step + 1)
        if collector is not None:
            evaluate_tasks(attempt, collector.environments, collector.pool, step)

    def close(self) -> None:
        """The loop closes the collector, which its rollouts use too."""
