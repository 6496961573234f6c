"""The watch for the cost so far of a run, and how that cost is computed."""
