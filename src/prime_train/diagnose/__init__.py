"""Finds the one root cause in many logs: signatures, tracebacks, time. Pure; reads no file but the registry."""
