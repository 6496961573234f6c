"""The watches of a run, one folder each. A watch reports what is wrong; policy.py decides what follows."""
