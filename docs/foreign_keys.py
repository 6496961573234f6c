"""Writes registry/foreign/keys/NAME.toml from the sources of other programs: `python docs/foreign_keys.py FOLDER`.

FOLDER has a checkout of each program in SOURCES, with the name of its repository, and two unpacked releases of
transformers. The keys of a file are the fields of classes there. Only their names are kept, and no source is imported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

TABLES = Path(__file__).parents[1] / "registry" / "foreign" / "keys"
TRANSFORMERS = ("transformers-4.57.1", "transformers-5.0.0")
_CONSTANT = re.compile(r"""(?m)^[A-Z][A-Z0-9_]+\s*=\s*["']([a-z][a-z0-9_]+)["']""")
_WIDTH = 118


class KeyTable(NamedTuple):
    """A table whose keys are judged. What is written as it is: `at`, its key, "" for the top; `unknown` and `why`.

    Its keys are the fields of the classes `roots`, where a * in front stands for any beginning, the constants in the
    files `constants`, and `extra`.
    """

    at: str
    unknown: str
    why: str
    roots: Sequence[str] = ()
    extra: Sequence[str] = ()
    constants: str = ""
    own_plugins: str = ""


class KeySource(NamedTuple):
    """Where the keys of a format are: classes of files in `folders`, all below the folder of the sources."""

    commit: str
    folders: Sequence[str]
    tables: Sequence[KeyTable]


_SCRIPT = "the parser of the Trainer's arguments ends with a key that no class of the script has"
_MODEL = "DeepSpeed ends with `Extra inputs are not permitted`"
_ZERO = "zero_optimization"
SOURCES: Mapping[str, KeySource] = {
    "axolotl": KeySource(
        "axolotl-ai-cloud/axolotl@067b021c8",
        ("axolotl/src/axolotl/utils/schemas", "axolotl/src/axolotl/integrations"),
        (
            KeyTable(
                "",
                "ignored",
                "axolotl drops a key that it does not know without a word",
                ("AxolotlConfigWCapabilities", "*Args", "SwanLabConfig"),
                own_plugins="axolotl.",
            ),
        ),
    ),
    "llama-factory": KeySource(
        "hiyouga/LLaMA-Factory@ff6d4d12e with transformers 4.57.1 and 5.0.0",
        ("LLaMA-Factory/src/llamafactory/hparams", *TRANSFORMERS),
        (
            KeyTable(
                "",
                "refused",
                "LLaMA-Factory ends with `Some specified arguments are not used by the HfArgumentParser`",
                ("*Arguments", "*Argument"),
            ),
        ),
    ),
    "trl": KeySource(
        "huggingface/trl@f2cd57710 with transformers 4.57.1 and 5.0.0",
        ("trl/trl", *TRANSFORMERS),
        (KeyTable("", "open", _SCRIPT, ("*Config", "*Arguments"), ("env", "config")),),
    ),
    "hf": KeySource("transformers 4.57.1 and 5.0.0", TRANSFORMERS, (KeyTable("", "open", _SCRIPT, ("*Arguments",)),)),
    "accelerate": KeySource(
        "huggingface/accelerate@16cb6eb80",
        ("accelerate/src/accelerate/commands/config",),
        (
            KeyTable(
                "",
                "refused",
                "accelerate ends with `The config file had unknown keys`",
                ("ClusterConfig", "SageMakerConfig"),
                ("fp16", "dynamo_backend"),
            ),
        ),
    ),
    "deepspeed": KeySource(
        "deepspeedai/DeepSpeed@edaa72212",
        ("DeepSpeed/deepspeed/runtime",),
        (
            KeyTable(
                "",
                "open",
                "DeepSpeed drops a key that it does not know without a word",
                extra=(
                    *("activation_checkpointing", "aio", "autotuning", "comet", "comms_logger", "compile"),
                    *("compression_training", "csv_monitor", "data_efficiency", "elasticity", "flops_profiler"),
                    *("hybrid_engine", "monitor_config", "nebula", "tensor_parallel", "tensorboard", "wandb"),
                    *("weight_quantization", _ZERO),
                ),
                constants="constants.py",
            ),
            KeyTable(_ZERO, "refused", _MODEL, ("DeepSpeedZeroConfig",)),
            KeyTable(f"{_ZERO}.offload_param", "refused", _MODEL, ("DeepSpeedZeroOffloadParamConfig",)),
            KeyTable(f"{_ZERO}.offload_optimizer", "refused", _MODEL, ("DeepSpeedZeroOffloadOptimizerConfig",)),
            KeyTable("fp16", "refused", _MODEL, ("DeepSpeedFP16Config",)),
            KeyTable("bf16", "refused", _MODEL, ("DeepSpeedBF16Config",)),
        ),
    ),
}


class Classes:
    """The classes of Python files, with the fields of each and the names of its bases."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._found: dict[str, list[ast.ClassDef]] = {}
        for path in paths:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    self._found.setdefault(node.name, []).append(node)

    def matching(self, patterns: Iterable[str]) -> set[str]:
        """The names of classes; a pattern may begin with *."""
        found = {name for pattern in patterns for name in self._found if _fits(name, pattern)}
        missing = [each for each in patterns if not any(_fits(name, each) for name in found)]
        if missing:
            raise SystemExit(f"no class is called {', '.join(missing)}")
        return found

    def fields(self, name: str) -> set[str]:
        """The fields of the classes with that name, and of their bases."""
        found: set[str] = set()
        for node in self._found.get(name, ()):
            found.update(_own_fields(node))
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id != name:
                    found |= self.fields(base.id)
        return found


def _fits(name: str, pattern: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*") else name == pattern


def _own_fields(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if not statement.target.id.startswith("_") and "ClassVar" not in ast.unparse(statement.annotation):
            yield statement.target.id
        for inner in ast.walk(statement.value) if statement.value is not None else ():
            if isinstance(inner, ast.keyword) and inner.arg in ("alias", "validation_alias"):
                yield from (str(each.value) for each in ast.walk(inner) if isinstance(each, ast.Constant))


def read_table(folder: Path, source: KeySource, table: KeyTable) -> list[str]:
    """The keys that a table may have, in order."""
    folders = [folder / name for name in source.folders]
    classes = Classes(path for each in folders for path in sorted(each.rglob("*.py")))
    names = {field for name in classes.matching(table.roots) for field in classes.fields(name)} | set(table.extra)
    if table.constants:
        names.update(_CONSTANT.findall((folders[0] / table.constants).read_text(encoding="utf-8")))
    return sorted(names)


def to_toml(folder: Path, source: KeySource) -> str:
    lines = ["# Made by docs/foreign_keys.py; registry/foreign_keys.py describes it.", f'source = "{source.commit}"']
    for table in source.tables:
        names = fill(" ".join(read_table(folder, source, table)), _WIDTH, break_on_hyphens=False)
        own = [f'own_plugins = "{table.own_plugins}"'] if table.own_plugins else []
        head = [f'at = "{table.at}"', f'unknown = "{table.unknown}"', f'why = "{table.why}"', *own]
        lines += ["", "[[table]]", *head, 'names = """', names, '"""']
    return "\n".join(lines) + "\n"


def main() -> None:
    TABLES.mkdir(exist_ok=True)
    for name, source in SOURCES.items():
        (TABLES / f"{name}.toml").write_text(to_toml(Path(sys.argv[1]), source), encoding="utf-8")


if __name__ == "__main__":
    main()
