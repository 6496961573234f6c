"""Runs on other machines, of a cloud or a scheduler: how a run gets there, and how it is judged from outside."""
