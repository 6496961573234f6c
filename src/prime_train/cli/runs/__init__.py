"""`prime-train runs` and `prime-train compare`: many runs in a table, and some beside each other."""
