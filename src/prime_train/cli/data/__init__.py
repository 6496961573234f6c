"""The commands on data sets."""
