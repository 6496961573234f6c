"""Every config that a run had, which attempts had it, and who started them. Reads only."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import CONFIG_BYTES
from prime_train.core.rundir import RunDir
from prime_train.events import Follower, LaunchAsked, RunOpened
from prime_train.supervise.launch.run_directory import number_config

_MOST = 1_000  # configs of one run that are shown, the latest


class ConfigOpening(NamedTuple):
    """One start of `prime-train run` with a config. `by`: USER@HOST; "" where it is not known."""

    time_s: float  # since the epoch
    by: str


class KeptConfig(NamedTuple):
    """The Nth config of a run, from 1. The last one is the config of now. `attempts` may have none."""

    number: int
    is_last: bool
    openings: tuple[ConfigOpening, ...]
    attempts: tuple[int, ...]


class ConfigHistory(NamedTuple):
    """The configs of a run, oldest first. `unknown`: attempts whose config the events do not name."""

    run_dir: RunDir
    configs: tuple[KeptConfig, ...]
    unknown: tuple[int, ...]

    def find(self, number: int) -> KeptConfig:
        """The Nth config. Raises UserError if the run has none of that number."""
        found = next((one for one in self.configs if one.number == number), None)
        if found is None:
            raise self._refuse(f"the run has no config {number}", f"its configs are 1 to {self.configs[-1].number}")
        return found

    def find_of_attempt(self, attempt: int) -> KeptConfig:
        """The config of an attempt. Raises UserError if there is no such attempt, or its config is not known."""
        found = next((one for one in self.configs if attempt in one.attempts), None)
        if found is None and attempt in self.unknown:
            raise self._refuse(f"the config of attempt {attempt} is not known", "its events do not number it")
        if found is None:
            started = sorted({*self.unknown, *(number for one in self.configs for number in one.attempts)})
            why = f"the attempts are {started[0]} to {started[-1]}" if started else "no attempt was started"
            raise self._refuse(f"the run has no attempt {attempt}", why)
        return found

    def _refuse(self, what: str, why: str) -> UserError:
        return UserError(what, str(self.run_dir.path), why, f"prime-train config history {self.run_dir.path.name}")

    def read(self, config: KeptConfig) -> tuple[str, str]:
        """(text, path to show) of a config. Raises UserError if it cannot be read."""
        path = self.run_dir.config if config.is_last else self.run_dir.earlier_config(config.number)
        shown = self.run_dir.relative(path)
        try:
            return outside.read_text(path, CONFIG_BYTES, self.run_dir.path), shown
        except (OSError, ValueError) as error:
            fix = "put the file back, or name another config of the run"
            if isinstance(error, PermissionError):
                fix = f"see `ls -ld {path}` and `id`; run the command as the owner of the run"
            raise outside.as_user_error(error, shown, fix, ExitCode.OUT_OF_REACH) from None


def read_config_history(run_dir: RunDir) -> ConfigHistory:
    """The history by the supervisors' events and the texts that they kept."""
    last = number_config(run_dir)
    openings: dict[int, list[ConfigOpening]] = {}
    attempts: dict[int, list[int]] = {}
    config = 0
    for record in Follower(run_dir.events).poll():
        match record.event:
            case RunOpened(config=number, by=by):
                # A run that had one config had it in each attempt, also where its events do not number it.
                config = number or (1 if last == 1 else 0)
                openings.setdefault(config, []).append(ConfigOpening(record.time_s, by))
            case LaunchAsked(attempt=attempt):
                attempts.setdefault(config, []).append(attempt)
    numbers = range(max(1, last - _MOST + 1), last + 1)
    configs = (
        KeptConfig(number, number == last, tuple(openings.get(number, ())), tuple(attempts.get(number, ())))
        for number in numbers
    )
    return ConfigHistory(run_dir, tuple(configs), tuple(attempts.get(0, ())))
