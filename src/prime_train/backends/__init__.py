"""RunSpec to launches. Pure."""
