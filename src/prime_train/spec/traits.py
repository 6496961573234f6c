"""What is the same for all configs of one format. Values only."""

from typing import NamedTuple


class Traits(NamedTuple):
    """What is the same for all configs of one format. The defaults are for run.toml."""

    has_size_fields: bool = True  # [model] has the sizes of a model without a folder
    runs_without_gpu: bool = True  # the trainer also runs, slowly, on a machine without a GPU
    shares_scarce_gpus: bool = True  # trainer and server share the GPUs of a machine that has too few for both
    raises_open_files_limit: bool = True  # the trainer raises the soft limit of open files itself
    name_is_required: bool = True  # prime-rl names a run itself
    writes_run_directory: bool = True  # one supervisor locks the write folder, and appends to event files in it
    required_package: str = ""  # the distribution that the run's interpreter must have
    max_steps_key: str = "run.max_steps"
    write_root_field: str = "run.dir"
    usual_write_root: str = "runs"  # of a config that sets none
    silence_field: str = (
        "prime_train.heartbeat.slow_phase_limit_s"  # the time limit of a save, after which it is a hang
    )


RUN_TOML = Traits()
OTHER_FORMAT = Traits(
    has_size_fields=False,
    runs_without_gpu=False,
    shares_scarce_gpus=False,
    raises_open_files_limit=False,
    name_is_required=False,
    writes_run_directory=False,
    required_package="prime-rl",
    max_steps_key="max_steps",
    write_root_field="launch.output_dir",
    usual_write_root="outputs",
    silence_field="trainer.dist_timeout_s",
)
