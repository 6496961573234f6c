"""Evidence of an attempt, and the cause of its end."""
