"""Imports rule families: all of them, or those that can report something on one kind of file. Judges nothing.

Importing a family registers its rules. A lint of a run.toml starts twice as fast without the families that judge only
prime-rl files or the machine (measured: 12 against 26 ms), one of a prime-rl file a twentieth faster without those of
a run.toml. tests/tables/rules/test_families.py keeps the lists complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path

from prime_train.rules.rule import RULES, Rule

# The families with a rule that judges a Python script, without facts.
_SCRIPT = "config.cfg_schema machine.jax_start config.sec_secrets"
_SCRIPT_CODES = ("CFG", "JAX", "SEC")
# The families with a rule that judges a file of another program; their tables have the rest.
_FOREIGN = "config.cfg_schema config.sec_secrets foreign.jsn_files foreign.key_names foreign.yml_files"
_FOREIGN_CODES = ("CFG001", "JSN001", "JSN002", "KEY001", "SEC001", "YML001")
_OF_FORMAT = {  # the families that judge only this format, and their codes
    "sbatch": (
        ("foreign.slurm_jobs", "SLU004"),
        ("foreign.slurm_jobs", "SLU015"),
        ("foreign.slurm_lightning", "SLU008"),
        ("foreign.named_gpus", "FIT"),
    ),
    "skypilot": (("foreign.sky_mounts", "SKT"), ("foreign.named_gpus", "FIT")),  # which imports foreign.sky_tasks
    "vllm-serve": (("foreign.shared_gpus", "VLS008"), ("foreign.served_adapters", "VLS003")),
    "deepspeed": (("foreign.resumed_shards", "DSP014"),),
    "llama-factory": (("foreign.factory_data", "LLF035"), ("foreign.factory_data", "LLF036")),
    "torchtune": (("foreign.data_rows", "TTU013"),),
    "megatron": (("foreign.data_tokens", "MCO012"),),
}
# Those that judge a config, without facts. The fields of the first are those that a prime-rl file has, too.
_ANY_CONFIG = (
    "config.bus_link config.cfg_schema config.pth_paths config.run_name config.sec_secrets data.eva_evaluation "
    "training.bkp_backup training.ckp_checkpoint training.opt_optimizer training.par_mesh training.par_processes "
    "training.sch_schedule"
)
_RUN_TOML = (
    "config.ini_init_from config.prf_profile data.aud_audio data.dat_sources data.eva_sets data.trf_transforms "
    "data.tsk_tasks model.mod_experts model.mod_sizes model.tok_tokenizer rollouts.pol_policy serving.eng_engine "
    "training.bat_batch training.cmd_command training.pre_precision training.rep_replicas training.rep_rounds "
    "training.stb_stability"
)
_PRIME_RL = (
    "config.dbg_debugging config.res_resume data.env_environments machine.net_network machine.var_environment "
    "model.mod_consistency model.mod_turns rollouts.bat_inflight rollouts.bat_rollouts serving.inf_arguments "
    "serving.len_completion serving.len_context serving.len_turns serving.smp_sampling training.bat_finetune "
    "training.lor_adapter training.mem_settings"
)
_EITHER = f"{_RUN_TOML} {_PRIME_RL}"
_BY_DIALECT = {"prime-train": _RUN_TOML, "prime-rl": _PRIME_RL}


@cache
def load_all() -> dict[str, Rule]:
    """Every rule by its code."""
    here = Path(__file__).parent
    _load(".".join(path.relative_to(here).with_suffix("").parts) for path in sorted(here.glob("**/[!_]*.py")))
    from prime_train.rules.foreign.doomed import load_tables

    load_tables()
    return RULES


def load_for_script() -> list[Rule]:
    """The rules that judge a Python script. Rules on config files are left out, so that none counts as passed."""
    _load(_SCRIPT.split())
    return [rule for rule in RULES.values() if rule.code.startswith(_SCRIPT_CODES)]


def load_for_foreign(formats: frozenset[str]) -> list[Rule]:
    """The rules that judge the files of other programs: those on any file, and those of the tables on its parts."""
    from prime_train.rules.foreign.doomed import load_tables

    own = [each for name in formats for each in _OF_FORMAT.get(name, ())]
    _load([*_FOREIGN.split(), *(family for family, _ in own)])
    judging, codes = load_tables(formats), (*_FOREIGN_CODES, *(code for _, code in own))
    return [rule for rule in RULES.values() if rule.code in judging or rule.code.startswith(codes)]


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
