"""What a step learns from rollouts."""
