"""Faults that the reader found in the file itself: syntax, keys, types, bounds. Judges nothing."""

from __future__ import annotations

from prime_train.config import parsed_config as codes
from prime_train.core.findings import Severity
from prime_train.rules.rule import reader_rule


@reader_rule(codes.SYNTAX, Severity.ERROR)
def not_toml() -> None:
    """The file must be TOML, a script Python, and a config of another program what that program reads.

    no value of the file is used unless all of it can be read

    A script is parsed by the Python that runs the lint, which may be older than the one that runs the script.

    Source: TOML 1.0.0, toml.io; docs.python.org/3/reference/grammar.html; YAML 1.1, yaml.org.

    Bad:
        [optim]
        lr = 1e-3e
    Bad (script):
        import jax

        jax.distributed.initialize(num_processes=4,,)
    Bad:
        # file accelerate.yaml
        distributed_type: MULTI_GPU
        num_processes: 8: 4
    Good:
        [optim]
        lr = 1e-3
    """


@reader_rule(codes.UNKNOWN_KEY, Severity.ERROR)
def unknown_key() -> None:
    """Every key must be one that is read.

    no code reads this key: the run would use a default that you did not choose

    A prime-rl file that names no generation may be for a newer prime-rl than the newest table. If it has no error but
    unknown keys and wrong types, a key without a known one of a similar name is a warning.

    Source: docs/config.md; registry/prime_rl, read out of prime-rl at e794fbe, 618de8a and 559b447.

    Bad:
        [batch]
        micro_bacth = 4
    Bad:
        [model]
        lr = 1e-3
    Bad:
        [optim]
        learning_rate = 1e-3
    Bad:
        [optimizer]
        weight_decay = 0.0
    Bad:
        [checkpoint]
        async_save = true
    Bad:
        [[eval.sets]]
        name = "books"
        split = "test"
        [[eval.sets.sources]]
        kind = "hf-dataset"
        path = "owner/books"
    Good:
        [optim]
        lr = 1e-3
    """


@reader_rule(codes.WRONG_TYPE, Severity.ERROR)
def wrong_type() -> None:
    """A value must have the type of its key.

    a value of another type has no clear meaning, or fails in the trainer

    Source: docs/config.md; registry/prime_rl, read out of prime-rl at e794fbe, 618de8a and 559b447.

    Bad:
        [optim]
        lr = "1e-3"
    Bad:
        [batch]
        micro_batch = 4.0
    Bad:
        [model]
        tie_embeddings = 1
    Bad:
        [eval]
        prompts = "def "
        interval_steps = 100
    Bad:
        model = "llama"
    Good:
        [optim]
        clip_norm = 1
    """


@reader_rule(codes.OUT_OF_BOUNDS, Severity.ERROR)
def out_of_bounds() -> None:
    """A number must lie within the bounds of its key.

    outside these bounds the value has no meaning, or the run ends in its first step

    Source: docs/config.md; registry/prime_rl, read out of prime-rl at e794fbe, 618de8a and 559b447.

    Bad:
        [optim]
        lr = 0.0
    Bad:
        [eval]
        held_out_ratio = 0.5
    Bad:
        [data]
        sources = []
    Good:
        [optim]
        weight_decay = 0.0
    """


@reader_rule(codes.NOT_A_CHOICE, Severity.ERROR)
def not_a_choice() -> None:
    """A value must be one of the choices of its key.

    no code handles any other value

    Source: docs/config.md; registry/prime_rl, read out of prime-rl at e794fbe, 618de8a and 559b447.

    Bad:
        [precision]
        compute = "fp23"
    Bad:
        [schedule]
        kind = "cosin"
    Good:
        [precision]
        compute = "fp32"
    """


@reader_rule(codes.MISSING_KEY, Severity.ERROR)
def missing_key() -> None:
    """A key without a default must be set.

    no value fits every run, so none is assumed

    Source: docs/config.md; registry/prime_rl, read out of prime-rl at e794fbe, 618de8a and 559b447.

    Bad:
        [[data.sources]]
        split = "train"
    Good:
        [[data.sources]]
        kind = "python-stdlib"
    """


@reader_rule(codes.OTHER_GENERATION, Severity.ERROR)
def other_generation() -> None:
    """A prime-rl file must use the keys of one generation of prime-rl.

    prime-rl renames its keys every few months and refuses the old ones; before 2026-05 it drops them silently

    Source: the tables in registry/prime_rl/, read out of prime-rl at e794fbe, 618de8a and 559b447.

    Bad (prime-rl 2026-08):
        [orchestrator]
        rollouts_per_example = 16
        group_size = "-"
    Bad (prime-rl 2026-08):
        [wandb]
        project = "example"
    Bad (prime-rl 2026-01):
        [orchestrator]
        group_size = 16
        rollouts_per_example = "-"
    Good (prime-rl 2026-08):
        [monitors.wandb]
        project = "example"
    """


@reader_rule(codes.OTHER_MEMBER, Severity.ERROR)
def other_member() -> None:
    """A key must belong to the variant that its table chooses.

    a table with a `type` accepts only the keys of that type, and refuses or drops the others

    Source: the discriminated unions in prime-rl's config classes.

    Bad (prime-rl 2026-08):
        [trainer.scheduler]
        type = "constant"
        warmup_steps = 10
    Good (prime-rl 2026-08):
        [trainer.scheduler]
        type = "linear"
        warmup_steps = 10
    """


@reader_rule(codes.SET_TWICE, Severity.ERROR)
def said_twice() -> None:
    """A key must not be set again under another of its names.

    one of the two values is dropped, and no message names it

    Source: the validation aliases in prime-rl's config classes.

    Bad (prime-rl 2026-05):
        [orchestrator]
        rollouts_per_example = 16
    Good (prime-rl 2026-05):
        [orchestrator]
        rollouts_per_example = 16
        group_size = "-"
    """


@reader_rule(codes.PASSED_THROUGH, Severity.WARNING)
def passed_through() -> None:
    """A key that prime-rl passes on unread should be one that its receiver knows.

    a wrong name shows only when vLLM starts, minutes into the run, or not at all

    Source: registry/vllm_arguments.json, the engine and server arguments of vLLM 0.32.0.

    Bad (prime-rl 2026-08):
        [inference.vllm]
        executor_backend = "ray"
    Bad (prime-rl 2026-08):
        [inference.vllm]
        max_num_seq = 64
    Good (prime-rl 2026-08):
        [inference.vllm]
        max_num_seqs = 64
    """


@reader_rule(codes.GENERATION, Severity.NOTE)
def generation_in_doubt() -> None:
    """The prime-rl generation of a file should be clear.

    legal keys and defaults differ from one generation to the next

    A file is judged by the newest generation in which it has no error, else by the one in which it has fewest; this
    note shows the others that it fits as well. A file whose keys are all legal in the newest generation is judged by
    that, also if it refuses some of them together. If a file names another generation than --prime-rl, the file's own
    counts, and this is a warning.

    Source: prime-rl at e794fbe, 618de8a and 559b447 (registry/prime_rl).

    Bad (prime-rl 2026-08 sft):
        run = "-"
    Good (prime-rl 2026-08 sft):
        run = "-"
        [prime_train]
        prime_rl = "2026-08"
    """


@reader_rule(codes.REFUSED, Severity.ERROR)
def refused_combination() -> None:
    """Keys that prime-rl accepts one by one must also be accepted together.

    prime-rl compares its keys before a run starts and refuses combinations that cannot work

    `validate` also asks the classes of an installed prime-rl, in the interpreter of --python, of [prime_train] python,
    or beside prime-rl's launcher, and reports what they refuse.

    Source: registry/prime_rl_validators, read out of prime-rl at e794fbe, 618de8a and 559b447.

    Bad (prime-rl 2026-08):
        [trainer.rollout_transport]
        type = "filesystem"
        [orchestrator.rollout_transport]
        type = "zmq"
    Bad (prime-rl 2026-08 sft):
        [renderer]
        name = "default"
    Good (prime-rl 2026-08 sft):
        [renderer]
        name = "qwen3"
    """
