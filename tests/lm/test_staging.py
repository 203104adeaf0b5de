from __future__ import annotations

import numpy as np
import torch

from specdec.lm.staging import Fields, Staging, fetched


def test_what_is_written_arrives_in_the_same_memory_every_time() -> None:
    fields: Fields = {
        "bits": ((3, 5), np.bool_),
        "rows": ((7,), np.int64),
        "none": ((2, 0), np.int64),
        "more": ((2, 3), np.int64),
    }
    staging = Staging(fields, torch.device("cpu"))
    addresses = {name: tensor.data_ptr() for name, tensor in staging.tensors.items()}
    random = np.random.default_rng(0)
    for _ in range(3):
        sent: dict[str, np.ndarray] = {
            name: random.integers(0, 2, shape).astype(dtype) for name, (shape, dtype) in fields.items()
        }
        for name, array in staging.arrays().items():
            array[...] = sent[name]
        staging.send()
        for name, tensor in staging.tensors.items():
            assert tensor.numpy().dtype == fields[name][1]
            assert np.array_equal(tensor.numpy(), sent[name])
            assert tensor.data_ptr() == addresses[name]


def test_nothing_is_seen_on_the_device_before_it_is_sent() -> None:
    staging = Staging({"rows": ((4,), np.int64)}, torch.device("cpu"))
    staging.arrays()["rows"][:] = 7
    assert staging.tensors["rows"].tolist() == [0, 0, 0, 0]
    staging.send()
    assert staging.tensors["rows"].tolist() == [7, 7, 7, 7]


def test_fetched_values_are_those_of_the_tensors_whatever_their_layout() -> None:
    tensors = [torch.arange(12).view(3, 4).T, torch.zeros(0, dtype=torch.float64), torch.tensor([True, False])]
    tensors += [x.cuda() for x in tensors] if torch.cuda.is_available() else []
    for array, tensor in zip(fetched(tensors), tensors, strict=True):
        assert np.array_equal(array, tensor.cpu().numpy())
