"""Every input that cannot be fitted is refused with a sentence, never with a bare exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cleverscore as cs
from cleverscore import tails

X = 2.0 - np.random.default_rng(0).weibull(3.0, (2, 60))
MAXIMA: dict[str, Any] = {
    "ragged": [[1.0, 2.0, 3.0], [1.0]],
    "ragged arrays": [np.ones(3), np.ones(4)],
    "nothing": None,
    "words": "maxima",
    "word in a list": [1.0, "two"],
    "number": 3.0,
    "empty": [],
    "no blocks": np.empty((3, 0)),
    "complex": np.ones(20) * 1j,
    "objects": [object(), object()],
    "dictionary": {"a": 1.0},
    "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "function": len,
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "fit": tails.fit,
    "law": tails.law,
    "interval": tails.interval,
    "stability": tails.stability,
    "weighted": lambda x: tails.fit_weighted(x, 1000, 10),
    "own": lambda x: tails.fit_own(x, lambda rows, level: tails.Endpoints(rows.max(1))),
    "ks": lambda x: tails.kolmogorov_smirnov(x, tails.fit(X)),
    "ad": lambda x: tails.anderson_darling(x, tails.fit(X)),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", MAXIMA)
def test_maxima_that_are_none(function: str, name: str) -> None:
    with pytest.raises(cs.CleverError, match="maxima"):
        FUNCTIONS[function](MAXIMA[name])


def test_a_tensor_with_a_gradient() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(cs.CleverError, match="maxima"):
        tails.fit(torch.ones(20, requires_grad=True))


@pytest.mark.parametrize("penalty", ["a", None, -1.0, np.nan, np.inf, True, [0.1]])
def test_penalties_that_are_none(penalty: Any) -> None:
    for function in (tails.fit, tails.law):
        with pytest.raises(cs.CleverError, match="penalty"):
            function(X, penalty)


@pytest.mark.parametrize("size", [0, -1, 1.5, "many", None, np.nan])
def test_block_sizes_that_are_none(size: Any) -> None:
    for function in (tails.fit, tails.interval):
        with pytest.raises(cs.CleverError, match="block_size"):
            function(X, block_size=size)
    with pytest.raises(cs.CleverError, match="block_size"):
        tails.fit_weighted(X, 1000, size)
    with pytest.raises(cs.CleverError, match="block_size"):
        tails.block_weights(1000, size, 10)


@pytest.mark.parametrize("answer", [None, 3.0, "end", [1.0, 2.0], tails.Endpoints([[1.0], [2.0, 3.0]]), ("a",), ()])
def test_answers_of_a_tail_model_that_are_none(answer: Any) -> None:
    with pytest.raises(cs.CleverError, match="tail model"):
        tails.fit_own(X, lambda rows, level: answer)


def test_fits_that_are_none() -> None:
    for function in (tails.kolmogorov_smirnov, tails.anderson_darling):
        with pytest.raises(cs.CleverError, match="fits"):
            function(X, "fits")  # type: ignore[arg-type]


def test_no_samples_are_no_fits() -> None:
    fits = tails.fit(np.empty((0, 60)))
    assert len(fits) == 0 and tails.interval(np.empty((0, 60)), fits).low.shape == (0,)
