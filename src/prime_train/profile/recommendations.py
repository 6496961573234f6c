"""What to change in a profiled run: rollouts, batches, collectives, data, checkpoints. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prime_train.core.units import counted, format_bytes, format_seconds
from prime_train.profile.diagnosis import (
    LEAST_GAIN,
    BottleneckDiagnosis,
    Class,
    ProfileEvidence,
    Recommendation,
    Setup,
    describe_host,
)
from prime_train.profile.measurement import COMPUTING

_CHECKPOINT_SHARE = 0.02  # that saves may take
_ONCE_AN_UPDATE_SHARE = 0.1  # that the optimizer, or collectives, may take
_MOST_TIMES = 16  # the largest change of a batch that is recommended


def recommend(diagnosis: BottleneckDiagnosis, evidence: ProfileEvidence) -> tuple[Recommendation, ...]:
    """Those for the class of the run first, the most direct one first, then the others by their gain."""
    rollouts = (_recommend_latency, _recommend_decode, _recommend_prefill, _recommend_overlap)
    trainer = (_recommend_train, _recommend_communication, _recommend_input, _recommend_checkpoint)
    found = [each for make in (*rollouts, *trainer) for each in make(evidence)]
    if diagnosis.name == "host-starved":  # more or larger devices would wait for the same cores
        found = [*_recommend_cores(evidence), *(each for each in found if each.kind != "train-bound")]
    first = [each for each in found if each.kind == diagnosis.name]
    worth = [each for each in found if (each.gain or 0.0) >= LEAST_GAIN]
    others = sorted((each for each in worth if each.kind != diagnosis.name), key=lambda each: -(each.gain or 0.0))
    return (*first[:1], *(each for each in first[1:] if each in worth), *others)


def _recommend_latency(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    measured, setup = evidence.measured, evidence.setup
    slow_s = evidence.per_step_s("tool", "environment")
    if slow_s <= 0:
        return
    for component, remedy in (
        ("tool", "run it on this machine, cache its answers, or make it faster"),
        ("environment", "make its answers and rewards faster, or run it on more cores"),
    ):
        own_s, call = evidence.per_step_s(component), measured.call(component)
        if own_s > 0 and call is not None:
            text = (
                f"{component}: {format_seconds(call.mean_s)} a call at {call.per_rollout:.1f} calls a rollout = "
                f"{own_s / evidence.step_s:.0%} of the step; {remedy}: without this time a step takes "
                f"{format_seconds(evidence.step_s / evidence.gain(own_s))}"
            )
            yield Recommendation("latency-bound", text, "", evidence.gain(own_s))
    rollouts = setup.global_batch
    if setup.concurrency is not None and rollouts is not None and setup.concurrency < rollouts:
        waves = math.ceil(rollouts / setup.concurrency)
        yield Recommendation(
            "latency-bound",
            f"raise concurrency from {setup.concurrency} to {rollouts}: all rollouts of a step then wait for the "
            f"environment at the same time, not in {waves} waves",
            f"rl.concurrency = {rollouts}",
            evidence.gain(slow_s * (1 - 1 / waves)),
        )


def _recommend_overlap(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    measured, setup = evidence.measured, evidence.setup
    if setup.max_behind_steps != 0 or not measured.rollouts:
        return
    trainer_s = measured.trainer_s / measured.steps
    rollouts_s = evidence.step_s - trainer_s
    text = (
        f"generate rollouts while the trainer works: they take turns, {format_seconds(rollouts_s)} and "
        f"{format_seconds(trainer_s)} of a step; rollouts are then one update behind"
    )
    yield Recommendation("balanced", text, "rl.max_behind_steps = 1", evidence.gain(min(trainer_s, rollouts_s)))


def _recommend_decode(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    measured, setup = evidence.measured, evidence.setup
    decode_s = evidence.per_step_s("decode", "queue", "rollouts")
    if decode_s <= 0 or measured.decoding is None:
        return
    wanted = _useful_concurrency(setup)
    if setup.concurrency is not None and wanted is not None and wanted > setup.concurrency:
        times = wanted / setup.concurrency
        at_once = measured.decoding * times
        faster = times if evidence.engine is None else evidence.engine.gain(measured.decoding, at_once)
        bound = "" if evidence.engine is not None else "up to "
        share = setup.kv_share(measured.decoding)
        why = (
            f"engine decodes at {share:.0%} of its KV capacity"
            if share is not None
            else f"engine decodes {measured.decoding:.1f} answers at a time, and {setup.global_batch} are needed a step"
        )
        yield Recommendation(
            "decode-bound",
            f"raise concurrency from {setup.concurrency} to {wanted}: {why}; it then generates {bound}{faster:.1f}x "
            "the tokens a second",
            f"rl.concurrency = {wanted}",
            evidence.gain(decode_s * (1 - 1 / max(faster, 1.0))),
        )
    call = measured.call("decode")
    tokens = f"{call.tokens / call.calls:.0f} tokens an answer" if call is not None and call.tokens else "its answers"
    text = (
        f"generate faster: a second engine, or shorter answers ({tokens}); half the decoding takes "
        f"{format_seconds(evidence.per_step_s('decode') / 2)} off a step"
    )
    yield Recommendation("decode-bound", text, "", evidence.gain(evidence.per_step_s("decode") / 2))


def _useful_concurrency(setup: Setup) -> int | None:
    """The rollouts that can be in progress at once: of one step, or of two if they overlap with training."""
    if setup.global_batch is None:
        return None
    steps = 1 + min(1, setup.max_behind_steps or 0)
    most = setup.global_batch * steps
    return most if setup.kv_sequences is None else min(most, setup.kv_sequences)


def _recommend_prefill(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    own_s, call = evidence.per_step_s("prefill"), evidence.measured.call("prefill")
    if own_s <= 0 or call is None:
        return
    text = (
        f"keep prompts in the prefix cache, or shorten them: a prefill takes {format_seconds(call.mean_s)} for "
        f"{call.tokens / call.calls:.0f} tokens, {call.per_rollout:.1f} times a rollout = "
        f"{own_s / evidence.step_s:.0%} of the step"
    )
    yield Recommendation("prefill-bound", text, "", evidence.gain(own_s))


def _recommend_train(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    setup = evidence.setup
    compute_s = evidence.per_step_s("forward", "backward", "forward_backward")
    if compute_s <= 0:
        return
    yield from _larger_micro_batch(evidence, compute_s)
    optimizer_s = evidence.per_step_s("optimizer")
    if setup.global_batch is not None and optimizer_s / evidence.step_s > _ONCE_AN_UPDATE_SHARE:
        yield _amortise(evidence, "train-bound", optimizer_s, "the optimizer takes {share:.0%} of a step")
    processes = setup.processes or 1
    has_more = setup.gpus >= 2 * processes
    yield Recommendation(
        "train-bound",
        f"compute on twice the devices, or on faster ones: forward and backward are "
        f"{compute_s / evidence.step_s:.0%} of a step, {format_seconds(compute_s)}"
        + (
            f", and {processes} of {setup.gpus} GPUs train" if has_more else "; this machine has no device that is free"
        ),
        f"parallel.processes = {2 * processes}" if has_more else "",
        evidence.gain(compute_s / 2, 0.0),
    )


def _larger_micro_batch(evidence: ProfileEvidence, compute_s: float) -> Iterator[Recommendation]:
    """The best of the measured micro-batches."""
    setup = evidence.setup
    base = next((one for one in evidence.probes if one.times == 1), None)
    if base is None or setup.micro_batch is None or setup.global_batch is None:
        return
    portions = max(1, setup.global_batch // (setup.micro_batch * (setup.processes or 1)))
    best, best_gain = None, LEAST_GAIN
    for one in evidence.probes:
        updates = max(1.0, one.times / portions)  # by which the global batch grows
        per_token = one.seconds / (one.times * base.seconds)
        after_s = (evidence.step_s - compute_s) / updates + compute_s * per_token  # for the tokens of a step before
        if one.times > 1 and evidence.step_s / after_s > best_gain:
            best, best_gain = one, evidence.step_s / after_s
    if best is None:
        return
    micro_batch = setup.micro_batch * best.times
    global_batch = max(setup.global_batch, micro_batch * (setup.processes or 1))
    setting = f"batch.micro_batch = {micro_batch}"
    if global_batch > setup.global_batch:
        setting += f", batch.global_batch = {global_batch}"
    tokens = f" of {setup.micro_batch * setup.ctx_tokens:,} tokens" if setup.ctx_tokens is not None else ""
    text = (
        f"raise the micro-batch from {setup.micro_batch} to {micro_batch}: a forward and backward{tokens} takes "
        f"{format_seconds(base.seconds)}, and {best.times}x the tokens {format_seconds(best.seconds)}, as measured"
    )
    yield Recommendation("train-bound", text, setting, best_gain)


def _amortise(evidence: ProfileEvidence, kind: Class, per_update_s: float, why: str) -> Recommendation:
    """A larger global batch, so that what happens once an update takes a tenth of the time."""
    setup, step_s = evidence.setup, evidence.step_s
    rest_s = max(step_s - per_update_s, 1e-9)
    wanted = per_update_s * (1 - _ONCE_AN_UPDATE_SHARE) / (_ONCE_AN_UPDATE_SHARE * rest_s)
    times = min(_MOST_TIMES, 1 << max(1, math.ceil(math.log2(max(wanted, 1.0)))))
    before, after = setup.global_batch or 1, (setup.global_batch or 1) * times
    text = (
        f"raise the global batch from {before} to {after} sequences: {why.format(share=per_update_s / step_s)}, "
        f"{format_seconds(per_update_s)}, and then happens once for {times}x the tokens; it also changes how the "
        "model learns"
    )
    return Recommendation(kind, text, f"batch.global_batch = {after}", step_s * times / (rest_s * times + per_update_s))


def _recommend_communication(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    own_s, weights_s = evidence.per_step_s("communication"), evidence.per_step_s("weights")
    if weights_s > own_s:
        yield _faster_handover(evidence, weights_s)
    if own_s > 0:
        yield from _fewer_collectives(evidence, own_s)
    if 0 < weights_s <= own_s:
        yield _faster_handover(evidence, weights_s)


def _fewer_collectives(evidence: ProfileEvidence, own_s: float) -> Iterator[Recommendation]:
    rate = ""
    if evidence.measured.reduced_bytes:
        per_step = evidence.measured.reduced_bytes / evidence.measured.steps
        rate = f" ({format_bytes(per_step)} at {format_bytes(per_step / own_s)}/s)"
    if evidence.setup.global_batch is not None:
        why = f"the exchange of gradients{rate} takes {{share:.0%}} of a step"
        yield _amortise(evidence, "communication-bound", own_s, why)
    text = (
        f"use a faster link between the processes: collectives{rate} take {format_seconds(own_s)} of a step of "
        f"{format_seconds(evidence.step_s)}"
    )
    yield Recommendation("communication-bound", text, "", evidence.gain(own_s, 0.0))


def _faster_handover(evidence: ProfileEvidence, weights_s: float) -> Recommendation:
    text = (
        f"hand over less: new weights reach the engine in {format_seconds(weights_s)}, "
        f"{weights_s / evidence.step_s:.0%} of a step; use shared memory, or an adapter (model.lora)"
    )
    return Recommendation("communication-bound", text, 'rl.handover = "shared-memory"', evidence.gain(weights_s, 0.0))


def _recommend_cores(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    """Cores for a trainer that waits for them. The gain is that of one whole core for its computing."""
    cores = evidence.measured.cpu_cores
    if cores is None:
        return
    saved_s = max(0.0, 1.0 - cores) * evidence.per_step_s(*COMPUTING)
    yield Recommendation(
        "host-starved",
        f"give it whole cores: {describe_host(evidence.measured, evidence.setup)}. Stop other programs (top shows "
        "them), raise the CPU limit of the container or the job, or use no more threads than cores (OMP_NUM_THREADS)",
        "",
        evidence.gain(saved_s, 0.0) if saved_s else None,
    )


def _recommend_input(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    setup = evidence.setup
    waited_s = evidence.per_step_s("data")
    if waited_s <= 0:
        return
    rest_s = max(evidence.step_s - waited_s, 1e-9)
    gain = evidence.gain(waited_s, 0.0)
    text = f"the loop waits {format_seconds(waited_s)} for data in a step of {format_seconds(evidence.step_s)}"
    workers = setup.loader_workers
    if workers is None:
        yield Recommendation("input-bound", f"prepare data in advance: {text}", "", gain)
        return
    # While the loop waits, the workers are busy all the time: they need step_s x workers for the rows of a step.
    load_s = evidence.step_s * workers if workers else waited_s
    wanted = max(workers + 1, math.ceil(round(load_s / rest_s, 3)))
    crowded = ""
    if setup.cores is not None and wanted >= setup.cores:
        crowded = f"; this machine has only {counted(setup.cores, 'core')}, so cheaper preparation helps more"
    text = (
        f"prepare data in {counted(wanted, 'worker')}: {text}; its rows take {format_seconds(load_s)} of work, and the "
        f"rest of the step {format_seconds(rest_s)}{crowded}"
    )
    yield Recommendation("input-bound", text, f"data.loader_workers = {wanted}", gain)


def _recommend_checkpoint(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    setup = evidence.setup
    own_s = evidence.per_step_s("checkpoint")
    if own_s <= 0:
        return
    rest_s = max(evidence.step_s - own_s, 1e-9)
    interval = setup.checkpoint_interval_steps
    if interval is None:
        text = f"save less often: saves take {own_s / evidence.step_s:.0%} of the time"
        yield Recommendation("checkpoint-bound", text, "", evidence.gain(own_s, 0.0))
        return
    save_s = own_s * interval
    wanted = _round_up(max(interval + 1, math.ceil(save_s / (_CHECKPOINT_SHARE * rest_s))))
    yield Recommendation(
        "checkpoint-bound",
        f"save every {wanted:,} steps, not every {interval}: a save stops the loop for {format_seconds(save_s)}, and "
        f"{wanted:,} steps take {format_seconds(wanted * rest_s)}",
        f"checkpoint.interval_steps = {wanted}",
        evidence.step_s / (rest_s + save_s / wanted),
    )


def _round_up(number: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50 ..."""
    scale = int("1" + "0" * (len(str(number)) - 1))
    return next(step * scale for step in (1, 2, 5, 10) if step * scale >= number)
