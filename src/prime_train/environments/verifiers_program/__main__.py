"""Starts the program for `PYTHON FOLDER`, where FOLDER is this one."""

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    folder = Path(sys.path[0])  # Python's own entry for FOLDER
    sys.path[0] = str(folder.parent)
    protocol = import_module(f"{folder.name}.protocol")
    del sys.path[0]  # the modules there would hide those of a taskset
    protocol.main()
