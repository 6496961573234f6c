"""Estimates the GPU memory of a training, and of a trainer and a server on one GPU. Pure."""
