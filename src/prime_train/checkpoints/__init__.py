"""Which checkpoints are complete, and which may go."""
