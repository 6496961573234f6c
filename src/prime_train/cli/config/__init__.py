"""`prime-train config`: shows, compares, saves and restores configs, and lists those that a run had."""
