"""Runs in the interpreter of SkyPilot: reads {name: task file} as JSON, prints what SkyPilot makes of each.

The output is one JSON object on the last line: `tasks`: name -> {"error": text} or what the Task has; `clouds`: name ->
features that the real package lacks.
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


def main() -> None:
    sky = importlib.import_module("sky")
    texts = json.load(sys.stdin)
    answer = {"tasks": {name: read_task(sky, text) for name, text in texts.items()}, "clouds": read_clouds(sky)}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
