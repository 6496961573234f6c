"""Reinforcement learning: engines, rollouts, advantages, loss. docs/rl.md has one step and its metrics.

Rank 0 owns the engine and the environments, and shares the rollouts of a step with the other ranks. The order of tasks
and the seed of each rollout depend on the run's seed alone, so a resumed run repeats its steps: bit-equal with the
local engine. The trainer raises alarms of its own (watch "rl"): engine and trainer disagree, or no group has unequal
rewards. Rollouts of a prompt share its computation if that costs no more.
"""
