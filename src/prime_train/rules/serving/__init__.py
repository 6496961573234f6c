"""Rules on the engine, its arguments, sampling and lengths."""
