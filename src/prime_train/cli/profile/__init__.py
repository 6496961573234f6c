"""`prime-train profile`."""
