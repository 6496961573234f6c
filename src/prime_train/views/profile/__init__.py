"""What is shown of a profile."""
