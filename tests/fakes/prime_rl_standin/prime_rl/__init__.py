"""A stand-in for prime-rl: root config classes of the same shapes, and none of its work."""
