"""Estimates the GPU memory of a training, and of a trainer and a server on one GPU. Pure.

The peak is the highest moment of a step, not the sum of all terms. With precision.fp8 the estimate counts bf16, and
names what was measured elsewhere.
"""
