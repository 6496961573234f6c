from __future__ import annotations

from dataclasses import replace

from prime_train.rules.training.run_needs import anchor
from prime_train.spec import Data, Run, RunSpec
from prime_train.spec.answers import replace_parts
from prime_train.spec.prime_rl_parts import Deployment, Inference, RolloutPart, Trainer

RUN = RunSpec(run=Run(name="a", max_steps=1), data=Data(sources=()))


def test_where_a_finding_about_the_whole_run_points() -> None:
    assert anchor(RUN) == "parallel.processes"
    assert anchor(replace_parts(RUN, trainer=Trainer(), format="prime-rl")) == "trainer.model_name"
    assert anchor(replace(RUN, inference=Inference(), format="prime-rl")) == "inference.model_name"
    assert anchor(replace_parts(RUN, rollout=RolloutPart(), format="prime-rl")) == "rollout.batch_rollouts"
    assert anchor(replace_parts(RUN, deployment=Deployment(train_gpus=1), format="prime-rl")) == "deployment.train_gpus"
    assert (
        anchor(replace_parts(RUN, deployment=Deployment(train_gpu_ids=(0,)), format="prime-rl"))
        == "deployment.train_gpu_ids"
    )
