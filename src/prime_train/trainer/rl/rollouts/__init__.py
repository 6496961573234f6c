"""Rollouts: tasks, collection, groups, order."""
