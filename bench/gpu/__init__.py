"""The steps of a session on a GPU, one file each, and what starts them and compares their rows with expectations.

Without torch: `steps`, `session`, `wheels`, `expected`, `table`. They run before any package is installed. Everything
else runs in the child of a step: `child` starts `measure(bench)` of one module.
"""
