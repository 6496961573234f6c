"""Tests of prime_train.supervise.answers."""
