"""Estimates the GPU memory of a vLLM server. Pure."""
