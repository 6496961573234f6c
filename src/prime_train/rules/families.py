"""Imports rule families: all of them, or those that can report something on one kind of file. Judges nothing.

Importing a family registers its rules. A lint of a run.toml starts twice as fast without the families that judge only
prime-rl files or the machine (measured: 12 against 26 ms), one of a prime-rl file a twentieth faster without those of
a run.toml. tests/rules/test_families.py keeps the lists complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path

from prime_train.rules.rule import RULES, Rule

# The families with a rule that judges a Python script, without facts.
_SCRIPT = "cfg_schema jax_start sec_secrets"
_SCRIPT_CODES = ("CFG", "JAX", "SEC")
# Those that judge a config, without facts. The fields of the first are those that a prime-rl file has, too.
_ANY_CONFIG = (
    "bkp_backup cfg_schema ckp_checkpoint eva_evaluation opt_optimizer par_processes pth_paths run_name sch_schedule "
    "sec_secrets"
)
_RUN_TOML = (
    "bat_batch dat_sources par_machines eva_sets mod_sizes mod_experts tok_tokenizer tsk_tasks pol_policy eng_engine "
    "prf_profile ini_init_from pre_precision"
)
_PRIME_RL = (
    "len_context var_environment env_environments lor_adapter mem_settings par_mesh net_network res_resume "
    "bat_rollouts bat_finetune smp_sampling inf_arguments len_completion mod_consistency dbg_debugging inf_parsers "
    "bat_inflight len_turns"
)
_EITHER = f"{_RUN_TOML} {_PRIME_RL}"
_BY_DIALECT = {"prime-train": _RUN_TOML, "prime-rl": _PRIME_RL}


@cache
def load_all() -> dict[str, Rule]:
    """Every rule by its code."""
    _load(path.stem for path in sorted(Path(__file__).parent.glob("[!_]*.py")))
    return RULES


def load_for_script() -> list[Rule]:
    """The rules that judge a Python script. Rules on config files are left out, so that none counts as passed."""
    _load(_SCRIPT.split())
    return [rule for rule in RULES.values() if rule.code.startswith(_SCRIPT_CODES)]


@cache
def load_for_dialect(dialect: str) -> None:
    """Loads the families for a file without parts of another format: every one of a config if the dialect is new."""
    _load(f"{_ANY_CONFIG} {_BY_DIALECT.get(dialect, _EITHER)}".split())


@cache
def load_for_config() -> None:
    """Loads the families for a run.toml with rollouts or a server, which has parts of both formats."""
    _load(f"{_ANY_CONFIG} {_EITHER}".split())


def _load(families: Iterable[str]) -> None:
    for family in families:
        import_module(f"prime_train.rules.{family}")
