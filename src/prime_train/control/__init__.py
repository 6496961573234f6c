"""Shows all runs of a folder on one page and in one table.

Everything shown comes from the files of the runs, as `status` reads them, so a controller that is killed loses nothing
and slows no run. `watcher.py` follows the runs in one thread and keeps one document; `stream.py` numbers its changes;
`server.py` serves both, with the page in `page/`, to those with a token (`access.py`). The index (`index.py`) only
saves the time to read runs that have ended again. Only `server.py` imports packages of the extra `control`.
"""
