"""What is shown of an estimate."""
