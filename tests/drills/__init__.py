"""Faults that a run must survive, brought about in the real trainer under the real command line."""
