"""Shows runs beside each other: the table of a folder, and the curves of several runs with the keys that differ.

A row of the table reads the state, the config and the end of the metrics of a run, and never a whole file of metrics:
`rows`, with `ends` for the best value, `spent` for the cost and `links` for W&B. `conditions` has the columns, and
what `--sort` and `--where` make of them. For `compare`, `curves` reads a whole run into a bounded number of points,
`repeats` groups runs that differ in their seeds, and `picture`, a process of its own, and `braille` draw the `panels`.
"""
