"""Reads which packages the run's interpreter has, in a child. Imports none of them in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec

from prime_train.facts.facts import Interpreter, ModuleFault, NotKnown, OldPackage, Packages, PartPackage
from prime_train.facts.probe_process import read_answer, script
from prime_train.facts.requirements import RequiredPackage

DEADLINE_S = 10.0  # an environment on a slow network disk
IMPORT_DEADLINE_S = 120.0  # a module may import torch and vLLM from a cold disk


def interpreter(
    python: str, distributions: Iterable[str], modules: Iterable[str], imported: Iterable[str] = ()
) -> Interpreter | NotKnown:
    """The `distributions` that `python` has, and the faults of `modules`; modules in `imported` are imported too."""
    imports = sorted(set(imported))
    request = {"distributions": sorted(set(distributions)), "modules": sorted(set(modules)), "imports": imports}
    deadline_s = IMPORT_DEADLINE_S if imports else DEADLINE_S
    output = read_answer(python, [python, script("interpreter_program")], deadline_s, request)
    if isinstance(output, NotKnown):
        return output
    if "torch_cuda" not in output:
        return NotKnown(f"{python} is not a Python interpreter: it answered {str(output)[:80]!r}")
    return Interpreter(
        python,
        output["version"],
        tuple(sorted(output["versions"].items())),
        tuple((name, requirement) for name, requirement in output["requirements"]),
        output["torch_cuda"],
        tuple(ModuleFault(name, fault) for name, fault in sorted(output["faults"].items())),
    )


def find_part_packages(parts: Iterable[RequiredPackage]) -> tuple[PartPackage, ...]:
    """What each part of a run finds in its interpreter. Each interpreter runs once."""
    wanted = tuple(parts)
    asked: dict[str, set[str]] = {}
    for part in wanted:
        asked.setdefault(part.python, set()).update(part.modules)
    from concurrent.futures import ThreadPoolExecutor  # lazy, because a supervisor imports this module and asks nothing

    with ThreadPoolExecutor(max_workers=max(1, len(asked))) as pool:
        answers = pool.map(lambda python: interpreter(python, (), asked[python]), asked)
        found = dict(zip(asked, answers, strict=True))
    return tuple(PartPackage(part.field, part.package, part.python, _fault_of(part, found)) for part in wanted)


def _fault_of(part: RequiredPackage, found: dict[str, Interpreter | NotKnown]) -> str:
    answer = found[part.python]
    if isinstance(answer, NotKnown):
        return answer.reason
    if part.folder is not None:
        return "" if part.folder.exists() else f"there is no {part.folder}"
    return next((missing.fault for missing in answer.faults if missing.module in part.modules), "")


# Import names of the `train` extra in pyproject.toml, and of `audio`.
TRAIN = ("torch", "numpy", "tokenizers", "safetensors", "pyarrow", "datasets", "transformers", "matplotlib",
         "soundfile", "soxr", "scipy")  # fmt: skip


def find_packages() -> Packages:
    return Packages(tuple(name for name in TRAIN if find_spec(name) is None), tuple(_find_old()))


def _find_old() -> Iterator[OldPackage]:
    """Packages of TRAIN whose version the metadata of prime-train does not take. Imports none of them."""
    # Here, because a supervisor imports this module and reads no metadata.
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion, Version

    try:
        required = [Requirement(text) for text in requires("prime-train") or ()]
    except PackageNotFoundError:  # a source tree that is not installed states no versions
        return
    for requirement in required:
        is_train = requirement.marker is not None and requirement.marker.evaluate({"extra": "train"})
        if requirement.name not in TRAIN or not is_train:
            continue
        try:
            installed = version(requirement.name)
            release = Version(installed).base_version  # vendors build 2.11.0a0 shortly before 2.11.0
        except (PackageNotFoundError, InvalidVersion):
            continue
        if release not in requirement.specifier:
            yield OldPackage(requirement.name, installed, str(requirement.specifier))
