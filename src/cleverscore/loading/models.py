"""Models by name: zoo:NAME, package.module:factory[?weights=FILE&argument=value], a file, or a Hugging Face folder."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cleverscore.errors import CleverError, LoadError
from cleverscore.inputs.image_preprocessing import ImagePreprocessing
from cleverscore.loading import safe_files as files
from cleverscore.loading.huggingface import is_model_folder, load_folder
from cleverscore.loading.torch_files import load_checkpoint, load_export, load_torchscript, state_of
from cleverscore.loading.zoo import shipped
from cleverscore.models.array_model import ArrayModel
from cleverscore.models.classifier import Classifier
from cleverscore.validation import import_module_of_user

FORMS = (
    "zoo:NAME, package.module:factory[?weights=file.safetensors], a file (.onnx, .pt2, TorchScript) or a Hugging Face "
    "folder"
)
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def load_model(model: str | Path, *, allow_pickle: bool = False, **options: Any) -> Classifier:
    """The classifier that `model` names; `options` are arguments of `Classifier` (bounds, mean, std, outputs, device).

    model           an ONNX, torch.export or TorchScript file, a Hugging Face folder, "zoo:mnist-cnn", or a function
                    that builds the network: "package.module:factory?weights=file.safetensors" (docs/models.md).
    allow_pickle    load pickled objects, which can run any code: only for files that you trust.

    >>> load_model("zoo:mnist-cnn").bounds
    (0.0, 1.0)
    """
    text = str(model)
    scheme, _, rest = text.partition(":")
    if scheme == "zoo":
        return _zoo(rest, options)
    factory = bool(rest) and all(part.isidentifier() for part in scheme.split("."))
    if isinstance(model, Path) or not factory or Path(text).exists():
        return _from_disk(Path(text), allow_pickle, options)
    return _factory(scheme, rest, allow_pickle, options)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _classifier(path: Path | str, found: dict[str, Any], options: dict[str, Any]) -> Classifier:
    """A classifier from the arguments that a loader found, replaced by the user's options where these are given."""
    found = {"name": str(path), **_given(found), **_given(options)}
    found.setdefault("preparation", ImagePreprocessing.like(found.get("input_shape")))
    module = found.pop("model")
    if isinstance(module, nn.Module):
        module.eval()
    return Classifier(module, **found)


def _zoo(name: str, options: dict[str, Any]) -> Classifier:
    network = shipped.network(name)
    known = shipped.NETWORKS[name]
    settings: dict[str, Any] = {
        "bounds": known.bounds, "mean": known.mean, "std": known.std,
        "input_shape": known.input_shape, "model": network, "origin": "shipped with cleverscore",
    }  # fmt: skip
    return _classifier(f"zoo:{name}", settings, options)


def _from_disk(path: Path, allow_pickle: bool, options: dict[str, Any]) -> Classifier:
    """A model from a file, whose format is recognised by its content, or from a model folder."""
    files.existing(path, "the model", FORMS)
    if path.is_dir():
        if not is_model_folder(path):
            raise LoadError(f"the folder '{path}' holds no Hugging Face model (no config.json in it); give {FORMS}")
        return _classifier(path, load_folder(path), options)
    kind = files.kind(path)
    if kind == "torchscript":
        return _classifier(path, {"model": load_torchscript(path), "origin": "TorchScript"}, options)
    if kind == "export":
        module, shape = load_export(path, allow_pickle=allow_pickle)
        return _classifier(path, {"model": module, "input_shape": shape, "origin": "torch.export"}, options)
    if kind in ("checkpoint", "pickle"):
        stored = load_checkpoint(path, allow_pickle=allow_pickle)
        if isinstance(stored, nn.Module):
            return _classifier(path, {"model": stored, "origin": "pickled module"}, options)
        raise LoadError(
            f"'{path}' holds weights and no network; name the function that builds it: "
            f"package.module:factory?weights={path}"
        )
    if path.suffix == ".onnx" or kind == "other":
        return _onnx(path, kind, options)
    raise LoadError(f"'{path}' is {KINDS[kind]}, not a model: give {FORMS}")


KINDS = {
    "empty": "an empty file", "npz": "an npz file with arrays", "zip": "a zip archive of another kind",
    "npy": "a numpy array", "safetensors": "a safetensors file, which has weights and no network",
    "hdf5": "an HDF5 file (Keras?), which must be exported to ONNX first", "gzip": "a compressed file",
    "picture": "a picture", "text": "a text file",
}  # fmt: skip


def _onnx(path: Path, kind: str, options: dict[str, Any]) -> Classifier:
    if kind in KINDS:
        raise LoadError(f"'{path}' is {KINDS[kind]}, not an ONNX model")
    from cleverscore.loading.onnx.convert import load_onnx

    with files.reading(path, "an ONNX model"):
        found = load_onnx(path)
    return _classifier(path, {"model": found.module, "input_shape": found.input_shape, "origin": found.origin}, options)


def _factory(module_name: str, rest: str, allow_pickle: bool, options: dict[str, Any]) -> Classifier:
    attribute, _, query = rest.partition("?")
    name = f"{module_name}:{attribute}"
    arguments = files.options_of(query, name)
    weights = arguments.get("weights")
    if weights is not None and (Path(weights).suffix in WEIGHTS or Path(weights).is_file()):
        del arguments["weights"]
    else:
        weights = None  # no file, such as weights=IMAGENET1K_V2 of torchvision: an argument of the factory
    try:
        module = import_module_of_user(module_name)
    except ImportError as error:
        raise LoadError(f"module '{module_name}' of model '{name}' cannot be imported: {error}") from error
    factory = getattr(module, attribute, None)
    if factory is None:
        raise LoadError(f"module '{module_name}' has no '{attribute}'")
    ready = isinstance(factory, (nn.Module, Classifier)) or (
        not isinstance(factory, type) and isinstance(factory, ArrayModel)
    )
    if not callable(factory) and not ready:
        raise LoadError(f"'{name}' is a {type(factory).__name__}; it must be a model or a function that builds one")
    if ready and arguments:
        raise LoadError(f"'{name}' is a model already and takes no arguments ({', '.join(arguments)})")
    try:
        model = factory if ready else factory(**_typed(factory, arguments))
    except CleverError:
        raise
    except Exception as error:
        raise LoadError(f"'{name}' failed to build a model: {type(error).__name__}: {error}") from error
    if weights is not None:
        _fill(model, Path(weights), name, allow_pickle)
    if isinstance(model, torch.nn.Module) and model is not factory:
        model.eval()  # a module that was just built is in training mode
    if isinstance(model, Classifier):
        if _given(options):
            raise LoadError(f"'{name}' gives a Classifier, which carries its own {', '.join(_given(options))}")
        return model
    found = {"preparation": ImagePreprocessing.like(options.get("input_shape")), "name": name, **_given(options)}
    return Classifier(model, **found)


def _typed(factory: Any, arguments: dict[str, str]) -> dict[str, Any]:
    """Arguments as numbers, booleans or None where they look like it, unless the factory's parameter is a string."""
    try:
        parameters = dict(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        parameters = {}
    typed: dict[str, Any] = {}
    for name, text in arguments.items():
        wants_text = name in parameters and parameters[name].annotation in (str, "str")
        typed[name] = text if wants_text else _value(text)
    return typed


def _value(text: str) -> Any:
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _fill(model: Any, path: Path, name: str, allow_pickle: bool) -> None:
    """Put the weights of a safetensors file or a torch checkpoint into a module."""
    if not isinstance(model, torch.nn.Module):
        raise LoadError(f"'{name}' gives a {type(model).__name__}, which takes no weights; leave out weights=")
    if not path.is_file():
        raise LoadError(f"the weights {path} do not exist")
    files.existing(path, "the weights", "a .safetensors, .pt or .pth file")
    kind = files.kind(path)
    if kind == "safetensors":
        from safetensors.torch import load_file

        with files.reading(path, "weights"):
            state = load_file(path)
    elif kind in ("checkpoint", "pickle", "torchscript"):
        state = state_of(load_checkpoint(path, allow_pickle=allow_pickle), path)
    else:
        raise LoadError(
            f"the weights {path} are {KINDS.get(kind, 'of another format')}; give a .safetensors or .pt file"
        )
    try:
        model.load_state_dict(state)
    except Exception as error:
        raise LoadError(f"the weights {path} do not fit '{name}': {files.one_line(error)}") from error
