"""Files of Prime Lab and verifiers share key names with prime-rl. None is judged, and each is named for what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.cli.lint.search import configs_among
from prime_train.config import detect
from prime_train.config.detect import is_config
from prime_train.core.errors import ExitCode, UserError
from tests.unit.config.prime_rl.files import FILES

_HOSTED = "hosted training"
_EVALUATION = "an evaluation config of verifiers"
_GEPA = "prompt optimization (GEPA)"

LAB = {
    f"{_HOSTED}": 'model = "a/b"\nmax_steps = 100\nbatch_size = 128\nrollouts_per_example = 8\n'
    '[sampling]\nmax_tokens = 512\n[[env]]\nid = "o/words"\n',
    f"{_HOSTED}, with an evaluation": 'model = "a/b"\nmax_steps = 50\nlearning_rate = 1e-4\n[wandb]\nproject = "w"\n'
    '[[env]]\nid = "o/words"\n[eval]\ninterval = 10\n[[eval.env]]\nid = "o/words"\n[val]\nnum_examples = 8\n',
    f"{_GEPA}": 'model = "a/b"\n[gepa]\nmax_calls = 500\n[[env]]\nenv_id = "words"\n',
    f"{_GEPA}, by its second model": 'reflection_model = "a/b"\n[env.taskset]\nid = "words"\n',
    f"{_EVALUATION}": 'model = "a/b"\nnum_examples = 5\n[[eval]]\nenv_id = "words"\n',
    f"{_EVALUATION}, of one environment": 'env_id = "words"\nnum_examples = 5\n[sampling]\nmax_tokens = 5\n',
    f"{_EVALUATION}, by id": '[[eval]]\nid = "words"\n[[eval]]\nid = "sums"\n[eval.args]\nlevel = 2\n',
    f"{_EVALUATION}, a sweep": 'model = "a/b"\n[[ablation]]\nid = "words"\n[ablation.sweep]\nseed = [0, 1]\n',
    f"{_EVALUATION}, of a taskset": 'num_tasks = 5\nnum_rollouts = 2\n[env.taskset]\nid = "words"\nmax_turns = 2\n'
    '[env.agent]\nmax_turns = 4\n[env.agent.harness]\nid = "null"\n',
    f"{_EVALUATION}, with a judge": 'num_tasks = 2\n[env]\nid = "judged"\n[env.taskset]\nid = "sums"\n'
    '[env.solver.runtime]\ntype = "docker"\n[env.judge]\nmodel = "a/b"\n',
    f"{_EVALUATION}, of a model": 'model = "a/b"\n[env.taskset]\nid = "words"\n',
    "an evaluation config of a newer prime-rl": 'model = "a/b"\ngroup_size = 3\nselect.limit = 20\n[client]\n'
    'base_url = "http://localhost:8000/v1"\n[[source]]\nname = "words"\nenv.taskset.id = "words"\n',
    "a list of endpoints": '[[endpoint]]\nendpoint_id = "x"\nmodel = "a/b"\nurl = "http://localhost:8000/v1"\n',
}


@pytest.mark.parametrize(("name", "text"), LAB.items(), ids=LAB.keys())
def test_a_file_of_prime_lab_is_refused_by_its_kind(name: str, text: str) -> None:
    with pytest.raises(UserError) as refused:
        detect.read(text, "configs/words.toml")
    error = refused.value
    assert name.partition(",")[0] in error.what
    assert (error.where, error.exit_code) == ("configs/words.toml", ExitCode.USAGE)
    assert error.why
    assert error.fix


@pytest.mark.parametrize("text", LAB.values(), ids=LAB.keys())
def test_a_search_declines_files_of_prime_lab(text: str) -> None:
    assert not is_config(text, "configs/rl/words.toml")


def test_a_hook_passes_over_files_of_prime_lab(tmp_path: Path) -> None:
    for number, text in enumerate(LAB.values()):
        (tmp_path / f"{number}.toml").write_text(text, encoding="utf-8")
    assert configs_among([str(path) for path in tmp_path.iterdir()]) == []


def test_a_generation_in_the_command_makes_it_a_file_of_prime_rl() -> None:
    assert detect.read(LAB[_HOSTED], "words.toml", "2026-01").dialect == "prime-rl"


@pytest.mark.parametrize("text", FILES.values(), ids=map(str, FILES))
def test_no_file_of_prime_rl_is_refused(text: str) -> None:
    assert detect.read(text, "configs/words.toml").dialect == "prime-rl"


@pytest.mark.parametrize(
    "text",
    [
        'max_steps = 5\nmodel = "a/b"\n[trainer]\n[orchestrator]\nbatch_size = 64\n[[env]]\nid = "words"\n',
        'model = "a/b"\n[data]\nname = "x"\n',
        'model = "a/b"\n[[env]]\nid = "words"\n[prime_train]\nprime_rl = "2026-01"\n',
        'output_dir = "out"\n[env.taskset]\nid = "words"\n',
    ],
)
def test_a_file_of_prime_rl_with_a_mistake_is_judged(text: str) -> None:
    assert detect.read(text, "words.toml").dialect == "prime-rl"
