"""Engines of rollouts: in this process, and vLLM. Token ids in; token ids and their log-probabilities out.

A log-probability is that under the distribution that was sampled from, and each answer is by one version of the
weights. In the local engine the rollouts of a group have one prompt, which is computed once. Each request has its own
random numbers, so its tokens do not depend on the requests beside it, except where rounding differs; in fp32 on a CPU
it does not (`exact_rows`). The thread of a small model computes alone, without the OpenMP threads of the trainer. vLLM
starts with the sizes of the model alone, because the trainer hands its weights over before the first rollout of every
attempt, so trainer and server are a consistent pair after any restart. A server that dies ends the trainer's requests
with an error that names it, and the attempt with them. After each update the trainer compares the server's
log-probabilities of a fixed text with its own, and with those of the former weights, because a version number only
proves that the server was asked.
"""
