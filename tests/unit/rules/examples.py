"""A good config and a good machine, and how a rule's examples change them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import is_dataclass, replace
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import tomli

from prime_train.config import detect
from prime_train.facts.facts import (
    Facts,
    Interpreter,
    ModelFolder,
    NotKnown,
    Packages,
    RunFolder,
    StepFolder,
    TokenizerFolder,
)
from prime_train.facts.machine import (
    Cpu,
    CudaContext,
    DiskSpeed,
    Gpu,
    MachineClock,
    OpenFiles,
    Ram,
    SaveDir,
    Shm,
    VisibleGpus,
)
from prime_train.rules.explain import BASES, FILE, SCRIPT, base_of, explain, files_of
from prime_train.rules.families import load_all
from prime_train.rules.judge import Verdict, judge
from prime_train.spec import RunSpec
from prime_train.spec.answers import launched_server, prime_rl_of, traits_of
from prime_train.toml.document import to_toml
from tests.unit.spec.architectures import architecture

GOOD_MACHINE = Facts(
    open_files=OpenFiles(soft=65536, hard=65536),
    cpu=Cpu(cores=8, bf16_instruction="amx_bf16"),
    ram=Ram(total_bytes=2**40, available_bytes=2**39),
    save_dir=SaveDir(Path("/runs/example"), Path("/runs"), free_bytes=2**44, held_bytes=0, refusal=""),
    gpus=VisibleGpus((), "no NVIDIA driver"),
    model_folder=None,
    tokenizer_folder=None,
    source_files=(),
    packages=Packages(()),
    shm=Shm(total_bytes=2**36, free_bytes=2**36),
    clock=MachineClock(1790000100.0, 1790000000.0, "host.py"),
    disk_speed=DiskSpeed(1e9),
    interpreter=Interpreter("/venv/bin/python", "3.12.3", (("torch", "2.13.0"),), torch_cuda="13.0"),
    part_packages=(),
    tasksets=(),
    transforms=(),
    busy_ports=(),
    hub=(),
    wandb=None,
    machines=None,
    cuda_context=CudaContext(8, ""),
    run_folder=RunFolder(Path("/runs/example")),
    data_lengths=(),
    chat_trials=(),
    model_contexts=(),
    engine=None,
)


def validate(text: str, path: str, facts: Facts) -> Verdict:
    """The verdict on a config text with facts."""
    return judge(detect.read(text, path), facts)


# What a run of prime-rl needs beside it: more GPUs than any example asks for.
_H200 = Gpu("NVIDIA H200", 150754820096, (9, 0))
_LOST_GPU = Gpu("", 0, (0, 0))
_GOOD_GPUS = VisibleGpus((_H200,) * 64, driver="580.95.05", driver_cuda=(13, 0))

# The folders of examples that do not describe their own.
_SMALL = architecture(vocab_size=32000, layers=4, hidden_size=256, heads=4, kv_heads=4, head_dim=64, mlp_size=704)
_MODEL_FOLDER = ModelFolder(Path("models/mine"), "", "llama", has_weights=True, architecture=_SMALL)
_TOKENIZER_FOLDER = TokenizerFolder(Path("tokenizers/mine"), "", 32000)


def parse(example: str) -> tuple[str, dict[str, Any]]:
    """(config text, facts overlay) of an example. One that is not TOML is put below the base as it is.

    A value `"-"` in the overlay takes the key out of the base. A script and files of another program stand for
    themselves.
    """
    if base_of(example) in (SCRIPT, FILE):
        return example, {}
    base = BASES[base_of(example)]
    try:
        overlay = tomli.loads(example)
    except tomli.TOMLDecodeError:
        return base + example, {}
    facts = overlay.pop("facts", {})
    comments = "".join(f"{line}\n" for line in example.splitlines() if line.startswith("#"))
    return comments + written(merged(tomli.loads(base), overlay)), facts


def judged(example: str, generation: str | None = None) -> Verdict:
    """The verdict on an example, read by the generation of its base unless another one is given."""
    return judge_text(*parse(example), generation or generation_of(example))


def judge_text(text: str, facts: Mapping[str, Any], generation: str | None) -> Verdict:
    if base_of(text) == FILE:
        return judge_files(files_of(text))
    reading = detect.read(text, path_of(text), generation)
    return judge(reading, facts_of(facts, reading.run) if reading.run is not None else None)


def judge_files(files: Mapping[str, str]) -> Verdict:
    """The verdict on the first of these files, beside the others in a folder of their own.

    It is so deep that the search for files in the folders above does not reach those of this machine.
    """
    with TemporaryDirectory() as root:
        folder = Path(root, *"abcdefghijkl")
        for name, content in files.items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_text(content, encoding="utf-8")
        first = next(iter(files))
        return judge(detect.read(files[first], str(Path(folder, first))))


def generation_of(example: str) -> str | None:
    """The generation of an example's base. None for run.toml, scripts and files whose generation is in doubt."""
    base = base_of(example)
    is_named = base.startswith("prime-rl ") and example not in explain(load_all()["CFG011"]).bad
    return base.split()[1] if is_named else None


def path_of(text: str) -> str:
    """A file name with the suffix of the example's kind of file."""
    return "train.py" if base_of(text) == SCRIPT else "config.toml"


def written(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {to_toml(value)}\n" for key, value in values.items())


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged, everything else is replaced, and "-" takes a key out."""
    result = deepcopy(dict(base))
    for key, value in overlay.items():
        if value == "-":
            result.pop(key, None)
            continue
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def facts_of(overlay: Mapping[str, Any], run: RunSpec) -> Facts:
    """The good machine with an overlay. Files that the config names exist, unless the overlay removes them."""
    parts = prime_rl_of(run)
    has_gpus = launched_server(run) is not None or not traits_of(run).runs_without_gpu or run.precision.fp8 != "none"
    base = GOOD_MACHINE if not has_gpus else replace(GOOD_MACHINE, gpus=_GOOD_GPUS)
    if run.model.path is not None:
        base = replace(base, model_folder=_MODEL_FOLDER)
    if run.tokenizer.path is not None:
        base = replace(base, tokenizer_folder=_TOKENIZER_FOLDER)
    if parts.resume is not None:
        step = max(1, parts.resume.step or 0)
        saved = StepFolder(step, Path(f"/runs/example/checkpoints/step_{step}"))
        base = replace(base, run_folder=RunFolder(Path("/runs/example"), checkpoints=(saved,)))
    return replace(base, **_overlaid(base, overlay))


def _overlaid(base: Any, overlay: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `base` that the overlay changes; a table changes some fields of a fact."""
    hints = get_type_hints(type(base))
    facts = {name: getattr(base, name) for name in overlay}
    return {
        name: _changed(facts[name], value)
        if isinstance(value, dict) and (hasattr(facts[name], "_replace") or is_dataclass(facts[name]))
        else _typed(hints[name], value)
        for name, value in overlay.items()
    }


def _changed(fact: Any, overlay: Mapping[str, Any]) -> Any:
    changed = _overlaid(fact, overlay)
    can_replace = hasattr(fact, "_replace")
    return fact._replace(**changed) if can_replace else replace(fact, **changed)


def _typed(hint: Any, value: Any) -> Any:
    """A TOML value as the annotation of a fact has it."""
    arguments = get_args(hint)
    if get_origin(hint) is UnionType or (arguments and get_origin(hint) is not tuple):
        hint = next(argument for argument in arguments if argument not in (NotKnown, type(None)))
        arguments = get_args(hint)
    if get_origin(hint) is tuple:
        return tuple(_typed(arguments[0], item) for item in value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if hasattr(hint, "_fields"):
        types = get_type_hints(hint)
        given = {name: _typed(types[name], item) for name, item in value.items()}
        if hint is Gpu:
            return (_LOST_GPU if "fault" in given else _H200)._replace(**given)
        empty: dict[type, Any] = {str: "", int: 0}
        return hint(**{name: empty[types[name]] for name in hint._fields if types[name] in empty} | given)
    return Path(value) if hint is Path else value
