"""Shows all runs of a folder on one page and in one table.

Runs in the folder are read from their files, as `status` reads them, so a controller that is killed loses nothing and
slows no run. `watcher.py` follows the runs in one thread and keeps one document; `stream.py` numbers its changes;
`server.py` serves both, with the page in `page/`, to those with a token (`access.py`, `guard.py`). The index only
saves the time to read runs that have ended again. Runs on other machines come over the bus: `remote.py` follows them in
a thread of its own, `remote_commands.py` speaks with their agents, `fleet_rows.py` gives them the shape of other runs.
Only `server.py`, `guard.py` and `nats_link.py` import packages of the extra `control`.
"""
