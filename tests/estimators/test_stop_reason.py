"""Reasons are plain words wherever they are stored, counted or compared."""

from __future__ import annotations

import json
from collections import Counter

import pytest

import cleverscore as cs
from cleverscore.estimators.stop_reason import is_eliminated


@pytest.mark.parametrize("reason", list(cs.StopReason))
def test_a_reason_is_its_words_with_one_sentence(reason: cs.StopReason) -> None:
    words = json.loads(json.dumps([reason]))[0]
    assert type(words) is str and words == reason == f"{reason}"
    assert Counter([reason, words]) == {words: 2}
    assert reason.sentence[0].isupper() and reason.sentence.endswith(".")
    assert is_eliminated(words) == is_eliminated(reason) == reason.sentence.endswith("eliminated.")
