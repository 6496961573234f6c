"""Imports rule families: all of them, or those that can report something on one kind of file. Judges nothing.

Importing a family registers its rules. A lint of a run.toml starts twice as fast without the families that judge only
prime-rl files or the machine (measured: 12 against 26 ms). tests/rules/test_families.py keeps the lists complete.
"""

from __future__ import annotations

from functools import cache

from prime_train.rules.rule import RULES, Rule

_SCRIPT_CODES = ("CFG", "JAX", "SEC")


@cache
def load_all() -> dict[str, Rule]:
    """Every rule by its code."""
    from importlib import import_module
    from pkgutil import iter_modules  # here, because a lint does not need it

    from prime_train import rules

    for module in iter_modules(rules.__path__, f"{rules.__name__}."):
        import_module(module.name)
    return RULES


def load_for_script() -> list[Rule]:
    """The rules that judge a Python script. Rules on config files are left out, so that none counts as passed."""
    from prime_train.rules import cfg_schema, jax_processes, jax_runtime, sec_secrets  # noqa: F401

    return [rule for rule in RULES.values() if rule.code.startswith(_SCRIPT_CODES)]


def load_for_run_toml() -> None:
    """The families with a rule that judges a run.toml without facts."""
    from prime_train.rules import (  # noqa: F401
        bat_batch,
        cfg_schema,
        ckp_checkpoint,
        dat_sources,
        eva_evaluation,
        mod_sizes,
        opt_optimizer,
        par_processes,
        pth_paths,
        run_name,
        sch_schedule,
        sec_secrets,
        tok_tokenizer,
    )


def load_for_config() -> None:
    """The families with a rule that judges a run.toml or a prime-rl file without facts."""
    load_for_run_toml()
    from prime_train.rules import (  # noqa: F401
        bat_rollouts,
        env_environments,
        inf_arguments,
        len_completion,
        len_context,
        lor_adapter,
        lor_serving,
        mem_settings,
        mod_consistency,
        net_network,
        par_mesh,
        res_resume,
        smp_sampling,
        var_environment,
    )
