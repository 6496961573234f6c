"""Replicas that outlive each other: groups of processes of one run, by torchft.

`launcher` is the process that the supervisor starts in the place of torchrun. It starts a lighthouse, which knows the
replicas that live, and the replicas. It starts a lost one again while the others train, and kills one that hangs.
It never imports torch. `judge` decides, `life_sign` is what it decides by. A replica has one or more processes:
`groups` ends all of them with the first one that is lost, and `ranks` keeps them in step.

Each process trains with the loop in `loops/replicated`. Before a step it joins a quorum: the replicas that take part in
this step. Each takes a part of the rows (`division`), and the sums of the step go over the quorum, from each rank to
the same rank of the others. If one is lost in the step, no weight changes, and the others repeat the step with the same
rows. A replica that is behind gets weights, optimizer and position from another one, so the rows of a step are those
after the rows of the committed steps (`step_rows`). The batch stays the same, or follows the replicas together with the
learning rate (`scaling`).

The first replica of a quorum leads: it alone writes events, metrics and checkpoints. So a checkpoint is one of a run
without replicas, and any number of them goes on from it. On several machines each has a launcher of its own replicas.
Machine 0 has the first ones, and no step is made without one of them, so the leader has the run directory. A replica of
another machine reads no checkpoint, and gets the training from a replica that has it.

With `parallel.sync_every` the loop is `loops/local_steps`. Its turn is a round of several steps (`round_plan`), and at
the end torchft's own classes join the weights (`rounds`). Quorum, launcher and judgement are the same.
"""
