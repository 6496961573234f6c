from __future__ import annotations

import torch

from prime_train.trainer.device_copy import copy_to_device


def test_tensors_stay_where_they_are_on_a_cpu() -> None:
    tensors = [torch.arange(3), torch.ones(2, 2)]
    copied = copy_to_device(tensors, torch.device("cpu"))
    assert [tensor.data_ptr() for tensor in copied] == [tensor.data_ptr() for tensor in tensors]
