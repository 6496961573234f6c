"""Reads and keeps GPU prices: the dated table, the catalogues and services that fill it, and its file."""
