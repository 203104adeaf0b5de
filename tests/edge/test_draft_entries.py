"""What `--draft` means: entries for drafter processes, or a sentence that says what to give."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from draft_service.config import DraftConfig
from specdec.core.errors import ConfigError
from specdec.edge import draft_entries as module
from specdec.edge.cluster import ClusterSpec, _draft_arguments
from specdec.edge.commands import up
from specdec.edge.config import read_config
from specdec.edge.draft_entries import DraftEntries, draft_entries
from tests.toy_tokenizers import save_folder

TARGET = "/models/SmolLM2-135M-Instruct.Q4_1-7000"


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A medusa and an eagle folder are shipped, a draft LM is not."""
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "models")
    for ending in ("medusa", "eagle"):
        folder = tmp_path / "models" / f"smollm2-135m-instruct-{ending}"
        folder.mkdir(parents=True)
        (folder / "draft.json").write_text("{}")
    return tmp_path / "models"


@pytest.mark.parametrize(
    ("draft", "entries", "num_layers"),
    [
        ("none", (), None),
        ("ngram", ("ngram",), None),
        ("suffix", ("suffix", "ngram"), None),
        ("first:3", (f"lm:{TARGET}", "ngram"), 3),
        ("self:int8,suffix", ("self:int8", "suffix", "ngram"), None),
        ("ngram, self", ("ngram", "self"), None),
    ],
)
async def test_each_name_becomes_the_entry_of_a_drafter(
    draft: str, entries: tuple[str, ...], num_layers: int | None
) -> None:
    assert await draft_entries(draft, TARGET) == DraftEntries(entries, num_layers)


async def test_a_name_alone_is_the_folder_that_is_shipped_for_the_target(shipped: Path) -> None:
    eagle = shipped / "smollm2-135m-instruct-eagle"
    found = await draft_entries("eagle,eagle2,medusa", TARGET)
    assert found.entries[:2] == (f"eagle:{eagle}", f"eagle2:{eagle}")
    assert found.names == ("eagle", "eagle2", "medusa", "ngram") and found.has_weights


async def test_folders_are_given_on_by_their_whole_path(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shipped)
    found = await draft_entries("lm:smollm2-135m-instruct-eagle", TARGET)
    assert found.entries[0] == f"lm:{shipped / 'smollm2-135m-instruct-eagle'}"
    whole = save_folder(tmp_path / "model", "byte_level")
    assert (await draft_entries(f"lm:{whole}", TARGET)).entries[0] == f"lm:{whole}"


@pytest.mark.parametrize(
    ("draft", "target", "sentence"),
    [
        ("lookahead", TARGET, "draft = 'lookahead': give comma separated: ngram"),
        ("", TARGET, "give comma separated"),
        ("ngram:3", TARGET, "give comma separated"),
        ("eagle:", TARGET, "give comma separated"),
        ("first:0", TARGET, "first:N needs N layers, at least 1"),
        ("first", TARGET, "first:N needs N layers"),
        ("first:2,lm:/nowhere/at/all", TARGET, "could not be made ready"),
        ("self:int8,self", TARGET, "names self twice"),
        ("first:1,first:2", TARGET, r"names lm twice \(first:N is an lm\)"),
        ("eagle:/nowhere", TARGET, r"/nowhere is no draft folder: it has no draft\.json"),
        ("lm", TARGET, r"there is no .*smollm2-135m-instruct-lm: train one \(docs/drafting\.md\)"),
        ("eagle", "/models/other", "none is shipped for other: give eagle:FOLDER"),
    ],
)
async def test_what_cannot_be_meant_is_refused_with_the_remedy(draft: str, target: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await draft_entries(draft, target)


def test_the_drafter_process_is_told_all_of_it() -> None:
    def given(spec: ClusterSpec) -> DraftConfig:
        return read_config(DraftConfig, _draft_arguments(spec, (0, 1)), {}, "draft_service")

    lm = DraftEntries(("lm:/draft", "ngram"), 3)
    config = given(ClusterSpec("/t", lm, draft_dtype="bfloat16", head_ids="first:9", tli=True, threads=5))
    assert (config.drafters, config.target_model, config.num_layers) == (("lm:/draft", "ngram"), "/t", 3)
    assert (config.dtype, config.head_ids, config.tli, config.threads) == ("bfloat16", "first:9", True, 5)
    config = given(ClusterSpec("/t", DraftEntries(("self",)), dtype="float32"))
    assert (config.precision, config.num_layers, config.tli, config.threads) == ("int8", None, False, 2)
    config = given(ClusterSpec("/t", draft_dtype="int8", threads=5))
    assert (config.drafters, config.model, config.threads) == (("ngram",), "/t", 1)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--head-ids", "first:9"], "head_ids = 'first:9': is for drafts by lm or self"),
        (["--draft", "suffix", "--tli"], "tli = True: is for drafts by lm"),
    ],
)
async def test_a_setting_of_models_is_not_ignored_where_there_is_none(
    tmp_path: Path, flags: list[str], sentence: str
) -> None:
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    model = save_folder(tmp_path / "model", "byte_level")
    with pytest.raises(ConfigError, match=sentence):
        await up.cluster_spec(parser.parse_args(["--target", str(model), *flags]))
