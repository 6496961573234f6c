"""Packs complete checkpoints without loss, part by part, and restores them byte for byte.

A kill at any moment leaves a complete checkpoint: packed.py describes the files, archive.py changes them.
"""
