"""Managed jobs of SkyPilot: rented spot machines, which are replaced when the cloud takes one away."""
