"""Config formats: text to RunSpec, with positions."""
