"""prime-rl's configs in every generation: tables of legal keys, and what a file makes of them."""
