from __future__ import annotations

from dataclasses import replace

import pytest

from prime_train.rules.anchor import anchor, gpus_asked
from prime_train.spec import Data, Run, RunSpec
from prime_train.spec.elsewhere import Deployment, Inference, Rollout, Trainer

RUN = RunSpec(run=Run(name="a", max_steps=1), data=Data(sources=()))


@pytest.mark.parametrize(
    ("deployment", "infers", "asked"),
    [
        (None, True, None),
        (Deployment(train_gpus=2, infer_gpus=6), True, 8),
        (Deployment(train_gpus=8, infer_gpus=1), False, 8),
        (Deployment(train_gpus=8, infer_gpus=8, kind="multi_node"), True, None),
        (Deployment(train_gpu_ids=(0, 1), infer_gpu_ids=(1, 4)), True, 5),
        (Deployment(train_gpu_ids=(0, 1), infer_gpu_ids=(1, 4)), False, 2),
        (Deployment(), True, None),
    ],
)
def test_the_gpus_that_a_run_takes(deployment: Deployment | None, infers: bool, asked: int | None) -> None:
    assert gpus_asked(replace(RUN, deployment=deployment, inference=Inference() if infers else None)) == asked


def test_where_a_finding_about_the_whole_run_points() -> None:
    assert anchor(RUN) == "parallel.processes"
    assert anchor(replace(RUN, trainer=Trainer())) == "trainer.model_name"
    assert anchor(replace(RUN, inference=Inference())) == "inference.model_name"
    assert anchor(replace(RUN, rollout=Rollout())) == "rollout.batch_rollouts"
    assert anchor(replace(RUN, deployment=Deployment(train_gpus=1))) == "deployment.train_gpus"
    assert anchor(replace(RUN, deployment=Deployment(train_gpu_ids=(0,)))) == "deployment.train_gpu_ids"
