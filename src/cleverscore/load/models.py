"""Models by name: zoo:NAME, or package.module:factory[?weights=file.safetensors&argument=value]."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import torch

from cleverscore.classifier import Classifier
from cleverscore.errors import CleverError, LoadError
from cleverscore.zoo import shipped

FORMS = "zoo:NAME or package.module:factory[?weights=file.safetensors]"


def load_model(model: str, **options: Any) -> Classifier:
    """The classifier that `model` names; `options` go to `Classifier` (bounds, mean, std, outputs, device).

    >>> load_model("zoo:mnist-cnn").bounds
    (0.0, 1.0)
    """
    scheme, _, rest = model.partition(":")
    if scheme == "zoo":
        return _zoo(rest, options)
    if rest and all(part.isidentifier() for part in scheme.split(".")):
        return _factory(scheme, rest, options)
    raise LoadError(f"'{model}' is not a model: give {FORMS}")


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _zoo(name: str, options: dict[str, Any]) -> Classifier:
    network = shipped.network(name)
    known = shipped.NETWORKS[name]
    settings: dict[str, Any] = {
        "bounds": known.bounds, "mean": known.mean, "std": known.std,
        "input_shape": known.input_shape, "name": f"zoo:{name}",
    }  # fmt: skip
    return Classifier(network, **{**settings, **_given(options)})


def _factory(module_name: str, rest: str, options: dict[str, Any]) -> Classifier:
    attribute, _, query = rest.partition("?")
    arguments = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    weights = arguments.pop("weights", None)
    name = f"{module_name}:{attribute}"
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a module beside the user, as `python -m` would find it
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise LoadError(f"module '{module_name}' of model '{name}' cannot be imported: {error}") from error
    factory = getattr(module, attribute, None)
    if factory is None:
        raise LoadError(f"module '{module_name}' has no '{attribute}'")
    if not callable(factory):
        raise LoadError(f"'{name}' is a {type(factory).__name__}; it must be a model or a function that builds one")
    try:
        model = factory if isinstance(factory, torch.nn.Module) else factory(**arguments)
    except CleverError:
        raise
    except Exception as error:
        raise LoadError(f"'{name}' failed to build a model: {type(error).__name__}: {error}") from error
    if weights is not None:
        _fill(model, Path(weights), name)
    if isinstance(model, torch.nn.Module) and model is not factory:
        model.eval()  # a new module is in training mode, and nobody could have changed that
    if isinstance(model, Classifier):
        if _given(options):
            raise LoadError(f"'{name}' gives a Classifier, which carries its own {', '.join(_given(options))}")
        return model
    return Classifier(model, **{"name": name, **_given(options)})


def _fill(model: Any, path: Path, name: str) -> None:
    """Put the weights of a safetensors file into a module."""
    from safetensors.torch import load_file

    if not isinstance(model, torch.nn.Module):
        raise LoadError(f"'{name}' gives a {type(model).__name__}, which takes no weights; leave out weights=")
    if not path.is_file():
        raise LoadError(f"the weights {path} do not exist")
    if path.suffix != ".safetensors":
        raise LoadError(
            f"the weights {path} are not a .safetensors file; convert them with safetensors.torch.save_file"
        )
    try:
        model.load_state_dict(load_file(path))
    except Exception as error:
        reason = " ".join(str(error).split())
        raise LoadError(f"the weights {path} do not fit '{name}': {reason}") from error
