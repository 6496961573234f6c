"""[data] with its sources, and [eval]. Values only; as run.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, Fraction, Ge, Gt, Lt, MinLen, NotNegative, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of text."""

    kind: Annotated[
        Literal["python-stdlib", "files", "hf-dataset", "tokens", "demonstrations", "audio", "chirps"],
        Doc(
            "`python-stdlib`: the source of the running interpreter's standard library; `files`: local .txt, "
            ".jsonl or .parquet; `hf-dataset`: a Hugging Face dataset by name or local folder; `tokens`: local .bin "
            "of llm.c or .npy, written by the tokenizer of tokenizer.path, with its end-of-text token between "
            'documents; `demonstrations`: solved tasks of [[tasks]], with run.kind = "sft". With run.kind = "audio": '
            "`audio`: compressed clips, in local Arrow or Parquet files, a folder, or a Hugging Face dataset; "
            "`chirps`: short clips in twelve classes, which the run makes itself."
        ),
    ]
    path: Annotated[
        str | None,
        Doc(
            "`files`, `tokens`: a file, a folder or a glob. `hf-dataset`: the name or a folder. `audio`: each of these."
        ),
    ] = None
    subset: Annotated[str | None, Doc("`hf-dataset`, `audio`: the configuration of the dataset.")] = None
    split: Annotated[str, Doc("`hf-dataset`, `audio`: the split to train on.")] = "train"
    text_field: Annotated[str, Doc("Column or key with the text of a document.")] = "text"
    messages_field: Annotated[
        str,
        Doc(
            '`run.kind = "sft"`: column or key with the list of messages of a chat. Without it a document has `prompt` '
            "and `completion`."
        ),
    ] = "messages"
    count: Annotated[Positive, Doc("`demonstrations`: number of solved tasks; `chirps`: clips to make.")] = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The training text and its sequences."""

    sources: Annotated[tuple[Source, ...], MinLen(1), Doc("The sources of text.")]
    sampling_probs: Annotated[
        tuple[Fraction, ...] | None,
        Doc("One probability per source, with the sum 1; unset = in proportion to the numbers of documents or clips."),
    ] = None
    sampling_unit: Annotated[
        Literal["documents", "tokens"],
        Doc(
            "What sampling_probs count. `tokens`: each source has its part of all tokens, whatever the lengths of its "
            "documents are, at every moment to within two documents."
        ),
    ] = "documents"
    document_start: Annotated[
        Literal["none", "eos"],
        Doc(
            "`eos`: the end-of-text token precedes each document and each of eval.prompts, so that first tokens are "
            "predicted and an empty prompt is continued as a document begins."
        ),
    ] = "none"
    ctx_tokens: Annotated[int, Ge(8), Doc("Tokens of a training sequence.")] = 512
    pack_buffer_docs: Annotated[Positive, Doc("Number of documents that are packed together, best fit first.")] = 1024
    loader_workers: Annotated[
        NotNegative | Literal["auto"],
        Doc(
            "Processes that tokenise and pack in advance; 0 = the trainer does it; `auto` = 1.5 times what the trainer "
            "uses, as measured in its first 20 steps."
        ),
    ] = 1
    transforms: Annotated[
        tuple[str, ...],
        Doc(
            "Functions that change the text of each training document, in this order. Each is one of "
            "allowed_transforms. Held-out text stays as it is."
        ),
    ] = ()
    allowed_transforms: Annotated[
        tuple[str, ...],
        Doc(
            'Functions that transforms may name while the run trains: `"module:function"`, from a module that Python '
            "finds in the working directory or in the environment. A function takes a text and returns one. Each is "
            "imported, so name only code that you trust."
        ),
    ] = ()

    @property
    def planned_workers(self) -> int:
        """The number of workers before it is measured: `auto` counts as 4."""
        return 4 if self.loader_workers == "auto" else self.loader_workers


_BATCH_SEQUENCES = 8  # of eval.batches: the default of batch.micro_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """Text of its own whose loss is measured at each evaluation. No run learns from it."""

    name: Annotated[str, Doc("Name of its metrics: eval/NAME/loss in nats per token, eval/NAME/bits_per_byte.")]
    sources: Annotated[tuple[Source, ...], MinLen(1), Doc("The sources of its text, as data.sources.")]
    tokens: Annotated[
        Positive, Doc("Tokens per evaluation, in whole sequences of ctx_tokens; the same documents for every seed.")
    ] = 262144


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Questions with known answers that the model gets at evaluations. `eval.tasks` counts the tasks of [[tasks]]."""

    kind: Annotated[
        Literal["hellaswag", "lm-eval"],
        Doc(
            "`hellaswag`: the most likely of four endings, from a local file. `lm-eval`: a task of the "
            "lm-evaluation-harness, which the `eval` extra installs."
        ),
    ]
    path: Annotated[
        str | None, Doc("`hellaswag`: the .jsonl file. `lm-eval`: a folder of task files, which lm-eval runs as code.")
    ] = None
    task: Annotated[str | None, Doc("`lm-eval`: the task or group, for example `arc_easy`.")] = None
    name: Annotated[
        str | None, Doc("`hellaswag`: name of its metrics; unset = hellaswag. Those of lm-eval have the task's name.")
    ] = None
    examples: Annotated[Positive | None, Doc("Ask only the first ones; unset = all.")] = None
    shots: Annotated[NotNegative | None, Doc("`lm-eval`: answered examples in the prompt; unset = as in the task.")] = (
        None
    )
    every: Annotated[Positive, Doc("Run at every n-th evaluation, and at the last step.")] = 1
    download: Annotated[
        bool, Doc("`lm-eval`: load data of the task from the network; else only from local files and the cache.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """The evaluation on held-out text."""

    interval_steps: Annotated[Positive | None, Doc("Steps between evaluations. The last step has one, too.")] = 100
    held_out_ratio: Annotated[
        Annotated[float, Gt(0), Lt(0.5)],
        Doc("Fraction of the documents that is held out; for a single document, its last part."),
    ] = 0.02
    tokens: Annotated[
        Positive | None,
        Doc("Held-out tokens per evaluation, in whole sequences of ctx_tokens; unset = 8 x batches sequences."),
    ] = None
    batches: Annotated[
        Positive, Doc("Groups of 8 held-out sequences per evaluation, for every micro_batch; `tokens` replaces it.")
    ] = 8
    prompts: Annotated[tuple[str, ...], Doc("Texts that the model continues at each evaluation.")] = ()
    sample_tokens: Annotated[Positive, Doc("Tokens to generate per prompt.")] = 48
    temperature: Annotated[
        float, Ge(0), Doc("Sampling temperature of the continuations; 0 = the most probable token.")
    ] = 0.8
    tasks: Annotated[Positive, Doc("Held-out tasks of each of [[tasks]] that an evaluation poses.")] = 64
    task_tokens: Annotated[
        Positive | None, Doc("Maximum tokens of one answer to a task; unset = rl.answer_tokens, or 64.")
    ] = None
    sets: Annotated[tuple[EvalSet, ...], Doc("More text whose loss is measured.")] = ()
    benchmarks: Annotated[tuple[Benchmark, ...], Doc("Questions with known answers.")] = ()

    def sequences(self, ctx_tokens: int) -> int:
        """Held-out sequences per evaluation: the same for every micro-batch, also where that shrinks during the run."""
        return self.batches * _BATCH_SEQUENCES if self.tokens is None else -(-self.tokens // ctx_tokens)
