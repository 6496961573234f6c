"""What to change in a run whose rollouts take the time: environment, concurrency, engine. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prime_train.core.units import format_seconds
from prime_train.profile.diagnosis import ProfileEvidence, Recommendation
from prime_train.profile.setup import Setup


def recommend_latency(evidence: ProfileEvidence) -> Iterator[Recommendation]:
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
            yield Recommendation(
                "latency-bound",
                f"{component}: {format_seconds(call.mean_s)} a call at {call.per_rollout:.1f} calls a rollout = "
                f"{own_s / evidence.step_s:.0%} of the step; {remedy}: without this time a step takes "
                f"{format_seconds(evidence.step_s / evidence.gain(own_s))}",
                "",
                evidence.gain(own_s),
            )
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


def recommend_overlap(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    measured, setup = evidence.measured, evidence.setup
    if setup.max_behind_steps != 0 or not measured.rollouts:
        return
    trainer_s = measured.trainer_s / measured.steps
    rollouts_s = evidence.step_s - trainer_s
    yield Recommendation(
        "balanced",
        f"generate rollouts while the trainer works: they take turns, {format_seconds(rollouts_s)} and "
        f"{format_seconds(trainer_s)} of a step; rollouts are then one update behind",
        "rl.max_behind_steps = 1",
        evidence.gain(min(trainer_s, rollouts_s)),
    )


def recommend_decode(evidence: ProfileEvidence) -> Iterator[Recommendation]:
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
    yield Recommendation(
        "decode-bound",
        f"generate faster: a second engine, or shorter answers ({tokens}); half the decoding takes "
        f"{format_seconds(evidence.per_step_s('decode') / 2)} off a step",
        "",
        evidence.gain(evidence.per_step_s("decode") / 2),
    )


def _useful_concurrency(setup: Setup) -> int | None:
    """The rollouts that can be in progress at once: of one step, or of two if they overlap with training."""
    if setup.global_batch is None:
        return None
    steps = 1 + min(1, setup.max_behind_steps or 0)
    most = setup.global_batch * steps
    return most if setup.kv_sequences is None else min(most, setup.kv_sequences)


def recommend_prefill(evidence: ProfileEvidence) -> Iterator[Recommendation]:
    own_s, call = evidence.per_step_s("prefill"), evidence.measured.call("prefill")
    if own_s <= 0 or call is None:
        return
    yield Recommendation(
        "prefill-bound",
        f"keep prompts in the prefix cache, or shorten them: a prefill takes {format_seconds(call.mean_s)} for "
        f"{call.tokens / call.calls:.0f} tokens, {call.per_rollout:.1f} times a rollout = "
        f"{own_s / evidence.step_s:.0%} of the step",
        "",
        evidence.gain(own_s),
    )
