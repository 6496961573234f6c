"""The packages in the interpreter that the run will use. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.facts.requirements import required_package
from prime_train.rules.rule import Problems, facts_rule, known
from prime_train.rules.training.run_needs import anchor
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts


@facts_rule("PKG001", Severity.ERROR, needs=("interpreter",))
def packages_clash(run: RunSpec, facts: Facts) -> Problems:
    """Packages that are known not to work together must not be installed together.

    an import fails, or kernels do not load, after the GPUs are taken

    Some entries are warnings.

    Source: registry/compatibility.toml, each entry with its own source.

    Bad:
        [facts.interpreter]
        versions = [["torch", "2.13.0+cpu"], ["torchvision", "0.28.0"]]
        torch_cuda = "none"
    Good:
        [facts.interpreter]
        versions = [["torch", "2.13.0+cpu"], ["torchvision", "0.28.0+cpu"]]
        torch_cuda = "none"
    """
    from packaging.specifiers import SpecifierSet

    from prime_train.registry import gpus

    interpreter = known(facts.interpreter)
    versions = dict(interpreter.versions)
    for clash in gpus.clashes():
        if clash.torch_cuda and clash.torch_cuda != interpreter.torch_cuda:
            continue
        if all(
            name in versions and SpecifierSet(meant).contains(versions[name], prereleases=True)
            for name, meant in clash.packages.items()
        ):
            there = ", ".join(f"{name} {versions[name]}" for name in clash.packages)
            yield Problem(
                anchor(run),
                f"{clash.what}; {interpreter.python} has {there}",
                fix=clash.fix,
                why=clash.why,
                severity=Severity.WARNING if clash.severity == "warning" else None,
            )


@facts_rule("PKG002", Severity.WARNING, needs=("interpreter",))
def requirement_unmet(run: RunSpec, facts: Facts) -> Problems:
    """The requirements of torch, vLLM, transformers and the like should be installed in the required versions.

    compiled kernels load with one version of torch only; other packages add and remove functions

    Source: PEP 508 and PEP 440; the Requires-Dist of what is installed.

    Bad:
        [facts.interpreter]
        versions = [["torch", "2.11.0"], ["vllm", "0.33.0"]]
        requirements = [["vllm", "torch==2.13.0"]]
    Good:
        [facts.interpreter]
        versions = [["torch", "2.13.0"], ["vllm", "0.33.0"]]
        requirements = [["vllm", "torch==2.13.0"]]
    """
    from packaging.requirements import InvalidRequirement, Requirement

    interpreter = known(facts.interpreter)
    versions = dict(interpreter.versions)
    python = {
        "python_version": ".".join(interpreter.version.split(".")[:2]),
        "python_full_version": interpreter.version,
    }
    for distribution, text in interpreter.requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # older metadata, which pip does not read either
        installed = versions.get(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({**python, "extra": ""})
        if installed and applies and not requirement.specifier.contains(installed, prereleases=True):
            needed = f"{requirement.name}{requirement.specifier}"
            yield Problem(
                anchor(run),
                f"{distribution} {versions.get(distribution, '')} requires {needed}, and {interpreter.python} has "
                f"{installed}",
                fix=f"{interpreter.python} -m pip install '{needed}'",
            )


@facts_rule("PKG003", Severity.ERROR, needs=("interpreter",))
def environment_not_installed(run: RunSpec, facts: Facts) -> Problems:
    """The package of every environment must be installed in the interpreter of the run.

    its server ends at the import, and the orchestrator waits for it

    With --deep the package is imported too, not only looked for.

    Source: verifiers, load_environment (an environment is an importable module).

    Bad (prime-rl 2026-08):
        [facts.interpreter]
        faults = [{module = "reverse_text", fault = "it is not installed"}]
    Good (prime-rl 2026-08):
        [facts.interpreter]
        faults = [{module = "wordle", fault = "it is not installed"}]
    """
    from prime_train.facts.requirements import environment_modules

    modules, interpreter = environment_modules(run), known(facts.interpreter)
    for missing in interpreter.faults:
        field = modules.get(missing.module)
        if field is not None:
            package = missing.module.replace("_", "-")
            yield Problem(
                field,
                f"{interpreter.python} cannot import {missing.module}: {missing.fault}",
                fix=f"uv pip install {package}, or prime env install OWNER/{package}",
            )


@facts_rule("PKG004", Severity.ERROR, needs=("interpreter",))
def program_not_installed(run: RunSpec, facts: Facts) -> Problems:
    """The program that trains a recipe, or another program's file, must be installed in the interpreter of the run.

    the run ends at its first import

    Source: registry/recipes.toml has the distribution of each program.

    Bad (recipe):
        [recipe]
        program = "torchtune"
        [facts.interpreter]
        versions = [["torch", "2.13.0"]]
    Good (recipe):
        [recipe]
        program = "torchtune"
        [facts.interpreter]
        versions = [["torch", "2.13.0"], ["torchtune", "0.6.1"]]
    """
    interpreter, package = known(facts.interpreter), "" if run.recipe is None else required_package(run)
    if package and package not in dict(interpreter.versions):
        yield Problem(
            anchor(run),
            f"{interpreter.python} has no {package}",
            fix=f"name the interpreter of the run with --python, or {interpreter.python} -m pip install {package}",
        )
