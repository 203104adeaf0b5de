from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from draft_service.training.corpus import Document
from draft_service.training.head_ids import coverage, frequent_ids, write_head_ids


def document(ids: list[int], first: int = 0) -> Document:
    return Document(np.array(ids, np.uint32), np.arange(len(ids)) >= first)


def test_the_ids_are_the_most_frequent_of_what_is_learned_and_rise() -> None:
    documents = [document([9, 9, 9, 5, 5, 3]), document([7, 7, 7, 7, 5], first=4)]
    assert frequent_ids(documents, 2, 10, always=()).tolist() == [5, 9]
    assert frequent_ids(documents, 3, 10, always=(2,)).tolist() == [2, 5, 9]
    assert frequent_ids(documents, 99, 10, always=()).tolist() == list(range(10))


def test_coverage_counts_learned_tokens_only() -> None:
    documents = [document([1, 2, 2, 3], first=1)]
    assert coverage(documents, np.array([2], np.uint32)) == 2 / 3


def test_the_file_is_one_list(tmp_path: Path) -> None:
    write_head_ids(tmp_path / "deep" / "ids.json", np.array([1, 5], np.uint32))
    assert json.loads((tmp_path / "deep" / "ids.json").read_text()) == [1, 5]
