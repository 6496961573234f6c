"""Changes a run that trains: `set`."""
