"""Hugging Face model folders: image and text classifiers, from the disk only."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from cleverscore.errors import InputError, LoadError, MissingExtraError
from cleverscore.inputs.image_preprocessing import RESAMPLINGS, ImagePreprocessing
from cleverscore.loading.safe_files import reading

# The value of all components of a row that marks padding. Those of word embeddings are of order one, so no perturbation
# makes padding of a word, or a word of padding.
PADDING = 1e6
LONGEST_TEXT = 512


def is_model_folder(path: Path) -> bool:
    """Whether a folder contains a Hugging Face model."""
    return (path / "config.json").is_file()


def load_folder(path: Path) -> dict[str, Any]:
    """Keyword arguments for the `Classifier` of a Hugging Face model folder.

    Always the model, its class names and its origin. For images also the bounds and, as far as the folder tells them,
    the input shape, the preparation of pictures, `mean` and `std`. For text also the preparation (the tokenizer).
    """
    with reading(path / "config.json", "the config of a Hugging Face model"):
        config = json.loads((path / "config.json").read_text())
        names = config.get("architectures") or []
        if config.get("auto_map"):
            raise LoadError(f"'{path}' needs Python code of its own (auto_map in its config), which is not run")
    if not any((path / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise LoadError(f"'{path}' has no model.safetensors; save it with model.save_pretrained(folder)")
    transformers = _transformers()
    kind = next(
        (name for name in names if name.endswith(("ForImageClassification", "ForSequenceClassification"))), None
    )
    if kind is None:
        found = ", ".join(names) or "nothing"
        raise LoadError(f"'{path}' is a model of kind {found}; image and text (sequence) classifiers can be scored")
    with reading(path, "a Hugging Face model"), _quiet(transformers):
        text = kind.endswith("ForSequenceClassification")
        auto = transformers.AutoModelForSequenceClassification if text else transformers.AutoModelForImageClassification
        model = auto.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype="auto"
        ).eval()
        given = {
            "class_names": [model.config.id2label[i] for i in sorted(model.config.id2label)],
            "origin": f"Hugging Face {kind}",
        }
        return {**given, **(_text(path, model, transformers) if text else _pictures(path, model, transformers))}


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtraError.of("transformers", "hf", "a Hugging Face folder") from None
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Suppress progress bars and messages of transformers on stderr."""
    bars = transformers.utils.logging.is_progress_bar_enabled()
    level = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()


class _Logits(nn.Module):
    """A Hugging Face model that returns plain logits instead of an output object."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, K) of standardised pictures."""
        logits: torch.Tensor = self.model(pixel_values=x).logits
        return logits


def _pictures(path: Path, model: Any, transformers: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"model": _Logits(model), "bounds": (0.0, 1.0)}
    channels = int(getattr(model.config, "num_channels", 3))
    if not (path / "preprocessor_config.json").is_file():
        size = getattr(model.config, "image_size", None)
        if isinstance(size, int):
            found["input_shape"] = (channels, size, size)
        return found
    processor = transformers.AutoImageProcessor.from_pretrained(
        str(path), local_files_only=True, trust_remote_code=False
    )
    preprocessing = preprocessing_of(processor, channels)
    found |= {"preparation": preprocessing, "input_shape": (channels, *preprocessing.size)}
    # A processor multiplies pixels from 0 to 255 by `rescale_factor`, then standardises. Our pixels are from 0 to 1.
    factor = 255.0 * (float(processor.rescale_factor) if getattr(processor, "do_rescale", True) else 1.0)
    if getattr(processor, "do_normalize", False):
        found["mean"] = [value / factor for value in processor.image_mean]
        found["std"] = [value / factor for value in processor.image_std]
    elif abs(factor - 1.0) > 1e-6:
        found["std"] = 1.0 / factor
    return found


def preprocessing_of(processor: Any, channels: int) -> ImagePreprocessing:
    """The resizing and cropping of an image processor, with `channels` channels; a LoadError if it has no size."""
    size, crop = getattr(processor, "size", None), getattr(processor, "crop_size", None)
    size = {} if size is None else {key: size[key] for key in ("height", "width", "shortest_edge") if _has(size, key)}
    resize: int | tuple[int, int] | None = None
    share = getattr(processor, "crop_pct", None)
    if getattr(processor, "do_resize", True):
        if "shortest_edge" in size:
            edge = int(size["shortest_edge"])
            resize = int(edge / share) if share and edge < 384 else edge if not share else (edge, edge)
            crop = crop if not share else {"height": edge, "width": edge}
        elif "height" in size:
            resize = int(size["height"]), int(size["width"])
    cropped = bool(share) or (getattr(processor, "do_center_crop", None) and crop is not None)
    if cropped and crop is not None:
        final = int(crop["height"]), int(crop["width"])
    elif isinstance(resize, tuple):
        final = resize
    elif resize is not None:
        final = resize, resize
    else:
        raise LoadError("its image processor names no size")
    return ImagePreprocessing(final, channels, resize, RESAMPLINGS[int(getattr(processor, "resample", 2) or 0)])


def _has(size: Any, key: str) -> bool:
    try:
        return size[key] is not None
    except (KeyError, AttributeError):
        return False


class _Embedded(nn.Module):
    """A text classifier whose inputs are word embeddings (n, length, width) instead of tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, K) of embeddings (n, length, width); rows that mark padding are masked."""
        word = x[..., 0] < PADDING / 2
        embeddings = torch.where(word[..., None], x, torch.zeros((), dtype=x.dtype, device=x.device))
        logits: torch.Tensor = self.model(inputs_embeds=embeddings, attention_mask=word.long()).logits
        return logits


@dataclass(frozen=True)
class TextEncoding:
    """How texts become inputs: texts to tokens, and tokens to the model's word embeddings.

    tokenizer   the tokenizer of the folder.
    embedding   the model's layer that turns tokens into word embeddings.
    longest     the largest number of tokens; longer texts are cut.
    """

    tokenizer: Any
    embedding: nn.Module
    longest: int

    def __str__(self) -> str:
        return f"texts to word embeddings, at most {self.longest} tokens"

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Texts as inputs (n, tokens of the longest text, width of an embedding).

        Shorter texts end in rows that mark padding. Raises an InputError for an empty text.
        """
        if not all(isinstance(text, str) and text.strip() for text in texts):
            row = next(i for i, text in enumerate(texts) if not isinstance(text, str) or not text.strip())
            raise InputError(f"text {row} is empty; leave it out")
        tokens = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.longest, return_tensors="pt"
        )
        with torch.no_grad():
            rows = self.embedding(tokens["input_ids"]).float()
            rows[tokens["attention_mask"] == 0] = PADDING
        array: npt.NDArray[np.float32] = rows.numpy()
        return array


def _text(path: Path, model: Any, transformers: Any) -> dict[str, Any]:
    if not (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        raise LoadError(f"'{path}' has no tokenizer; save it there with tokenizer.save_pretrained(folder)")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    longest = min(int(tokenizer.model_max_length), int(getattr(model.config, "max_position_embeddings", LONGEST_TEXT)))
    encoding = TextEncoding(tokenizer, model.get_input_embeddings(), min(longest, LONGEST_TEXT))
    return {"model": _Embedded(model), "preparation": encoding}
