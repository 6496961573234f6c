"""Reinforcement learning: engines, rollouts, advantages, loss. docs/rl.md has one step and the metrics.

Rank 0 owns the engine and the environments, and shares the rollouts of a step with the other ranks. The order of tasks
and the seed of each rollout depend on the run's seed alone, so a resumed run repeats the same steps: bit-equal with the
local engine. The trainer raises alarms, too (watch "rl"): engine and trainer disagree, or no group has unequal rewards.
Rollouts with the same prompt share the computation if that costs no more.
"""
