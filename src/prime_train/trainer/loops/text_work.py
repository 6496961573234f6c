"""The work of pretraining: packed documents, the cross-entropy of the next token, and every evaluation of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from prime_train.spec import RunSpec
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.data import stream
from prime_train.trainer.data.stream import held_out_batches
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from prime_train.trainer.data.tokenised import Share
from prime_train.trainer.evaluation.benchmarks.suite import open_suite
from prime_train.trainer.evaluation.evaluate import HeldOut, Samples
from prime_train.trainer.evaluation.evaluation import Evaluation
from prime_train.trainer.evaluation.overlap import prepare_sets
from prime_train.trainer.loops.ready import Ready
from prime_train.trainer.loops.step import loss_sum
from prime_train.trainer.loops.work import Work
from prime_train.trainer.parallel import World
from prime_train.trainer.rl.rollouts.task_targets import open_targets
from prime_train.trainer.tokenizer import LoadedTokenizer


def load_text(run: RunSpec, world: World) -> Work[MicroBatch]:
    """The packed documents of data.sources."""
    # One rank of a machine tokenises, because the others would make the same cache.
    tokenizer = world.load_in_turn(partial(stream.prepare, run)) or load_tokenizer(run)
    return Work(
        tokenizer=tokenizer,
        open_rows=partial(stream.TrainStream, run, tokenizer, share=Share(world.local_rank, world.local_size)),
        loss=loss_sum,
        unit="tokens",
        open_evaluations=partial(
            open_evaluations,
            load_held_out=partial(held_out_batches, run, tokenizer),
            encode_prompt=partial(encode_prompt, run, tokenizer),
            stop_tokens=frozenset({tokenizer.eos_id}),
        ),
    )


def encode_prompt(run: RunSpec, tokenizer: LoadedTokenizer, prompt: str) -> list[int]:
    """The tokens of a prompt, as the beginning of a document."""
    # Where documents begin with a token, a prompt without it would be the middle of one.
    start = [] if run.data.document_start == "none" else [tokenizer.eos_id]
    return [*start, *tokenizer.encode(prompt)]


def open_evaluations(
    attempt: Attempt,
    ready: Ready,
    load_held_out: Callable[[], Sequence[MicroBatch]],
    encode_prompt: Callable[[str], Sequence[int]],
    stop_tokens: frozenset[int],
) -> tuple[Evaluation, ...]:
    """Everything that a run on text or chats measures, in its order. Raises UserError where something is missing."""
    run, tokenizer, world = attempt.run, ready.tokenizer, ready.training.world
    targets = open_targets(attempt, tokenizer, ready.config, ready.training.device)
    held_out = HeldOut(load_held_out())
    sets = prepare_sets(run, tokenizer, world)
    suite = open_suite(run, tokenizer, world)
    samples = Samples(tokenizer, [encode_prompt(prompt) for prompt in run.eval.prompts], stop_tokens)
    return targets, *sets, suite, held_out, samples
