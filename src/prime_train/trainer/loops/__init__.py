"""The training loops, and the step that they share."""
