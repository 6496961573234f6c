"""Rules on the file itself: schema, names, paths, secrets, resuming."""
