"""Columns of cut heads and the ids they stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specdec.core.errors import ConfigError
from specdec.core.sampling import SamplingParams
from specdec.core.tree import Ids
from specdec.lm.id_map import NO_COLUMN, IdMap, read_head_ids


def ids(*values: int) -> Ids:
    return np.array(values, dtype=np.uint32)


def test_columns_are_where_the_ids_stand_and_nowhere_else() -> None:
    id_map = IdMap(ids(2, 3, 9))
    assert id_map.columns(ids(3, 9, 2, 0, 4, 10, 4_000_000_000)).tolist() == [1, 2, 0, *[NO_COLUMN] * 4]
    assert id_map.own_ids.tolist() == [2, 3, 9] and len(id_map) == 3


def test_a_part_of_a_map_keeps_each_columns_own_id() -> None:
    part = IdMap(ids(2, 3, 9), ids(70, 5, 6)).only([9, 2, 1000])
    assert part.target_ids.tolist() == [2, 9] and part.own_ids.tolist() == [70, 6]


def test_parameters_speak_of_columns_and_of_nothing_else() -> None:
    params = SamplingParams(
        temperature=0.7, logit_bias=((9, 1.0), (4, 2.0), (2, -1.0), (9, 0.5)), end_ids=(3, 8), min_tokens=4, top_k=7
    )
    mapped = IdMap(ids(2, 3, 9)).params(params)
    assert mapped == replace(params, logit_bias=((2, 1.0), (0, -1.0), (2, 0.5)), end_ids=(1,))


def test_the_first_ids_come_with_those_that_end_a_turn() -> None:
    assert read_head_ids("first:3", 97, {96, 1, 500}).tolist() == [0, 1, 2, 96]
    assert read_head_ids("first:1000", 5, ()).tolist() == [0, 1, 2, 3, 4]


def test_a_file_of_ids_is_read_in_each_of_its_forms(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("7\n3\n3\n")
    (tmp_path / "ids.json").write_text("[3, 7]")
    np.save(tmp_path / "ids.npy", np.array([7, 3], dtype=np.uint32))
    for name in ("ids.txt", "ids.json", "ids.npy"):
        assert read_head_ids(str(tmp_path / name), 8, {0}).tolist() == [3, 7]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("7\nx\n", "cannot be read as a list of ids"),
        ("7\n8\n", "holds 8, which is no id of a vocabulary of 8"),
        ("-1\n", "holds -1"),
        ("", "names no id"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "ids").write_text(text)
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_head_ids(str(tmp_path / "ids"), 8, ())
    assert refused.value.field == "head_ids"


@pytest.mark.parametrize("spec", ["first:", "first:0", "first:-1", "first:1.5", "/nowhere/ids.npy"])
def test_a_spec_that_cannot_be_meant_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="head_ids"):
        read_head_ids(spec, 8, ())


@pytest.mark.parametrize("text", ['{"a": 1}', "[1.5]", "[[1]]", "[true]"])
def test_json_that_is_no_list_of_integers_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "ids.json").write_text(text)
    with pytest.raises(ConfigError, match="must hold one list of integers"):
        read_head_ids(str(tmp_path / "ids.json"), 8, ())
