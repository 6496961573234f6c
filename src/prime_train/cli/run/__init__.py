"""`prime-train run`, and what it does before a run starts."""
