"""A stand-in for vLLM: its server starts or fails as the environment says."""
