"""`prime-train lint`."""
