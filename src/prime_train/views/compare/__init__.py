"""Shows runs beside each other: a table for a folder, and for several runs their curves with the keys that differ.

A row in the table reads state, config and the last metrics of a run, and never a whole metrics.jsonl:
`rows`, with `ends` for the best value and `spent` for the cost. `conditions` has the columns, and what `--sort` and
`--where` do with them. For `compare`, `curves` reads a whole run into a bounded number of points,
`repeats` groups runs that differ in their seeds, and `picture`, a separate process, and `braille` draw the `panels`.
"""
