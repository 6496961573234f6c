"""Whether a run lives, judged from outside."""
