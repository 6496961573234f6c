"""Runs on rented machines: what their clouds offer, how a run gets there, and how it is judged from outside."""
