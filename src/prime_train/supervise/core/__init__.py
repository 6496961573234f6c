"""The loop, the state that events give, and the decisions."""
