"""Shows a run: reads events and writes nothing back."""
