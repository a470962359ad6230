"""Which name of a source is which of the model."""

from __future__ import annotations

import pytest

from tranlogs_torch.checkpoint_import.matching import match_names

MODEL = ["embed.weight", "block.0.weight", "head.bias"]


def under(prefix: str, names: list[str] = MODEL) -> list[str]:
    return [prefix + name for name in names]


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod.", "model.module."])
def test_prefixes_of_wrappers_are_read_away(prefix: str) -> None:
    match = match_names(under(prefix), MODEL)
    assert match.is_whole
    assert match.names == dict(zip(under(prefix), MODEL, strict=True))


def test_a_prefix_that_the_model_has_is_read_into_the_source() -> None:
    match = match_names(under("module."), under("model."))
    assert match.names == dict(zip(under("module."), under("model."), strict=True))


def test_a_wrapper_in_the_middle_is_read_away() -> None:
    match = match_names(["embed.weight", "block._orig_mod.0.weight", "head.bias"], MODEL)
    assert match.is_whole


def test_names_that_fit_as_they_are_stay() -> None:
    names = ["model.w", "w"]
    assert match_names(names, names).names == {"model.w": "model.w", "w": "w"}


def test_a_prefix_of_some_is_none() -> None:
    match = match_names(["module.embed.weight", "block.0.weight", "head.bias"], ["embed.weight", "block.0.weight", "x"])
    assert (match.missing, match.unexpected) == (("x",), ("head.bias",))


def test_two_ways_to_read_are_refused() -> None:
    match = match_names(["module.model.w"], ["w", "model.w"], may_lack=["*"])
    assert match.is_ambiguous
    assert not match.is_whole


def test_what_is_missing_and_unexpected_is_named_as_it_is_called_there() -> None:
    match = match_names(["module.embed.weight", "module.old.weight"], MODEL)
    assert match.missing == ("block.0.weight", "head.bias")
    assert match.unexpected == ("module.old.weight",)


def test_patterns_allow_a_part() -> None:
    source = ["module.embed.weight", "module.old.weight"]
    assert match_names(source, MODEL, may_lack=["block.*", "head.*"], may_drop=["old.*"]).is_whole
    assert not match_names(source, MODEL, may_lack=["block.*"], may_drop=["old.*"]).is_whole
    assert not match_names(["a"], ["b"], may_lack=["*"], may_drop=["*"]).is_whole, "nothing of it fits"


def test_more_that_fits_counts_before_fewer_ways() -> None:
    match = match_names(["model.a", "model.b"], ["a", "b", "model.a"], may_lack=["*"], may_drop=["*"])
    assert match.names == {"model.a": "a", "model.b": "b"}


def test_one_of_tied_names_is_enough() -> None:
    tied = {"head.weight": "embed.weight"}
    match = match_names(["embed.weight"], ["embed.weight", "head.weight"], same=lambda name: tied.get(name, name))
    assert match.is_whole
