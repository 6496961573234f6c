"""Runs in the interpreter of SkyPilot: reads task files and arguments, prints what SkyPilot makes of them.

The input is one JSON object: `tasks`: name -> text, `arguments`: lists of words after `sky jobs`, and `folders`. The
output is one on the last line: `tasks`: name -> {"error": text} or what the Task has; `clouds`: name -> features that
the real package lacks; `arguments`: the options that `sky` reads; `left_out`: the paths in each folder that it does not
copy.
"""

import importlib
import json
import sys
from typing import Any


def read_task(sky: Any, text: str) -> dict[str, Any]:
    """The parts of the Task that SkyPilot builds from a text, or its error."""
    yaml = importlib.import_module("yaml")
    try:
        task = sky.Task.from_yaml_config(yaml.safe_load(text))
    except (ValueError, TypeError, sky.exceptions.InvalidSkyPilotConfigError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    mounts = task.storage_mounts or {}
    return {
        "name": task.name,
        "nodes": task.num_nodes,
        "workdir": task.workdir,
        "clouds": sorted(str(resources.cloud).lower() for resources in task.resources),
        "gpus": sorted(json.dumps(resources.accelerators, sort_keys=True) for resources in task.resources),
        "spot": all(resources.use_spot for resources in task.resources),
        "disk_gb": sorted({resources.disk_size for resources in task.resources}),
        "recovery": [resources.job_recovery for resources in task.resources],
        "caps": sorted({resources.max_hourly_cost for resources in task.resources} - {None}),
        "mounts": {folder: [mount.name, mount.mode.value] for folder, mount in mounts.items()},
        "environment": dict(task.envs),
        "secrets": sorted(task.secrets),
        "setup": task.setup,
        "run": task.run,
    }


def read_clouds(sky: Any) -> dict[str, list[str]]:
    """What each cloud lacks. Private API of skypilot 0.14.1; a cloud whose packages are missing is left out."""
    registry = importlib.import_module("sky.utils.registry")
    found: dict[str, list[str]] = {}
    for name, cloud in registry.CLOUD_REGISTRY.items():
        try:
            lacking = cloud._unsupported_features_for_resources(sky.Resources())
        except ImportError:
            continue
        found[name] = sorted(feature.name for feature in lacking)
    return found


def read_arguments(words: list[str]) -> dict[str, Any]:
    """The options that `sky jobs COMMAND` reads from its arguments. Runs nothing."""
    command = importlib.import_module("sky.client.cli.command").jobs.commands[words[0]]
    with command.make_context(words[0], words[1:]) as context:
        return {name: value for name, value in context.params.items() if value not in (None, (), False)}


def list_left_out(folder: str) -> list[str]:
    """The paths in a folder that SkyPilot does not copy. Private API of skypilot 0.14.1."""
    found: list[str] = importlib.import_module("sky.data.storage_utils").get_excluded_files(folder)
    return sorted(path.rstrip("/") for path in found)


def main() -> None:
    sky = importlib.import_module("sky")
    asked = json.load(sys.stdin)
    answer = {
        "tasks": {name: read_task(sky, text) for name, text in asked["tasks"].items()},
        "clouds": read_clouds(sky),
        "arguments": [read_arguments(words) for words in asked["arguments"]],
        "left_out": [list_left_out(folder) for folder in asked["folders"]],
    }
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
