"""What is judged: one small function per rule."""
