"""Reinforcement learning: engines, rollouts, advantages, loss."""
