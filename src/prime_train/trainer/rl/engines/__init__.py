"""Engines of rollouts: in this process, and vLLM. Token ids in; token ids and their log-probabilities out.

A log-probability is that under the distribution that was sampled from, and each answer is by one version. In the local
engine a group's rollouts have one prompt, which is computed once. Each request has its own random numbers, so the
tokens do not depend on the requests beside it, except where rounding differs; in fp32 on a CPU it does not
(`exact_rows`). The thread of a small model computes alone, without the OpenMP threads of the trainer. vLLM starts with
the sizes of the model alone, because the trainer hands the weights over before the first rollout in every attempt, so
trainer and server are a consistent pair after any restart. A server that dies ends the trainer's requests with an error
that names it, and the attempt with them. After each update the trainer compares the server's log-probabilities for a
fixed text with those that it computes itself, by the present weights and by the former ones, because a version number
only proves that the server was asked.
"""
