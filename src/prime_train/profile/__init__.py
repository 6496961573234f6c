"""Where the time of a training step goes: spans to critical path, measurement, diagnosis and recommendations. Pure."""
