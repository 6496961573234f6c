"""Rules on the configs of other programs."""
