"""The vLLM server that answers the tasks of a run: it starts without weights and gets those of the trainer.

It has no tokenizer either, because prompts and answers are token ids. Pure, except that a tokenizer's vocabulary is
counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.facts.files import tokenizer_folder
from prime_train.programs.vllm.engine_watch import DEVELOPMENT
from prime_train.spec import RunSpec
from prime_train.spec.answers import launched_server
from prime_train.spec.decoder_size import architecture_from_fields
from prime_train.spec.hf_config import describe_decoder
from prime_train.spec.server import Server
from prime_train.supervise.launch.program import Variable

_EXTENSION = Path(__file__).with_name("extension")
ARGUMENTS = (
    # The trainer hands its weights over before the first request, also after a resume.
    *("--load-format", "dummy"),
    "--skip-tokenizer-init",
    # The log-probabilities are those of the distribution that is sampled from, with its temperature.
    *("--logprobs-mode", "processed_logprobs"),
    *("--worker-extension-cls", "prime_train_weights.WeightLoader"),
)


def fill_in(server: Server, run: RunSpec, run_dir: RunDir) -> Server:
    """The server with the model and the context of the run."""
    model = server.model or run.model.path or str(run_dir.policy)
    ctx_tokens = server.ctx_tokens or run.data.ctx_tokens
    return replace(server, model=model, served_name=server.requests_name, ctx_tokens=ctx_tokens)


def list_files(run: RunSpec, run_dir: RunDir) -> tuple[tuple[Path, str], ...]:
    """The config.json of a model that has no folder. Raises UserError if the tokenizer's vocabulary is not known."""
    server = launched_server(run)
    if run.model.path is not None or (server is not None and server.model):
        return ()
    sizes = architecture_from_fields(run.model, _count_vocabulary(run))
    ctx_tokens = run.data.ctx_tokens
    if server is not None and server.ctx_tokens is not None:
        ctx_tokens = max(ctx_tokens, server.ctx_tokens)
    config = describe_decoder(sizes, ctx_tokens=ctx_tokens)
    return ((run_dir.policy / "config.json", json.dumps(config, indent=2) + "\n"),)


def _count_vocabulary(run: RunSpec) -> int:
    folder = tokenizer_folder(run.tokenizer.path)
    if folder is None:
        return run.tokenizer.vocab_size
    if folder.vocab_size is None:
        raise UserError(
            what="the number of tokens of this tokenizer is not known",
            where="tokenizer.path",
            why="vLLM must know the size of the model before the trainer starts, and only tokenizer.json has it",
            fix="a folder with a tokenizer.json, or model.path with the model of this tokenizer",
        )
    return folder.vocab_size


def list_variables(given: Mapping[str, str]) -> tuple[Variable, ...]:
    """`given`: the environment that the server inherits."""
    path = os.pathsep.join(filter(None, (str(_EXTENSION), given.get("PYTHONPATH", ""))))
    return (
        Variable(DEVELOPMENT, "1", "the routes by which the trainer hands its weights over"),
        Variable("PYTHONPATH", path, "the module by which vLLM's workers load them"),
    )
