"""Rules on the batches and the policy of a run with rewards."""
