"""Answers requests to the supervisor: each kind of request has one module, which checks it and returns events.

A request comes from any process of the run's user, so the values in its body are checked like any input. An answer is
an event RequestAnswered with the id of the request; what was accepted is further events, which the loop folds.
"""
