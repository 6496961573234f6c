"""Values and formats that every layer uses. Imports nothing else of the project.

What comes from outside: run directories, checkpoints, model folders, configs and logs are copied and shared, so
`outside` opens them, from folder to folder (openat); test_outside_only.py lists each other place that opens a file,
with the reason. In `COMPLETE.json`, `.metadata` and `model.safetensors.index.json` only plain names below the folder
are accepted; any other name makes the checkpoint broken, or refuses the folder. A gzip log is unpacked to at most 100
times the size that it has. Model folders may hold links, because the hub's cache consists of links. A file that another
user owns or that is on a read-only disk ends with exit code 4, never as a bug.

Secrets are masked where text leaves: events, JSON documents, what a command prints, logs that are shown, report,
evidence, alerts, rows at W&B, crash files. What children write to their logs is not masked, so files that a run makes
have mode 600 and folders 700; below a folder with the set-group-ID bit the group has access as well.

`http` sends every request except those of the hub's own library and the trainer's connections to the run's server. It
ends a whole answer at a deadline, also where a server sends single bytes for ever.
"""
