"""Small networks that the tests save in every format, and factories for the command line: tests.loading.nets:NAME."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

SHAPE = (1, 8, 8)
CLASSES = 4


class ConvNet(nn.Module):
    """Convolution, batch normalisation, pooling, a branch, and two matrices."""

    def __init__(self, classes: int = CLASSES, width: int = 6) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(width * 16, 12), nn.Softplus(), nn.Linear(12, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        return self.head(self.pool(x + self.second(x)))


def conv_net(classes: int = CLASSES, width: int = 6, name: str = "") -> ConvNet:
    """The same weights in every call."""
    assert isinstance(classes, int) and isinstance(name, str)
    torch.manual_seed(1)
    net = ConvNet(classes, width)
    net.norm.running_mean.uniform_(-0.5, 0.5)
    net.norm.running_var.uniform_(0.5, 1.5)
    return net.eval()


def blank_net() -> ConvNet:
    torch.manual_seed(2)
    return ConvNet()


def inputs(count: int = 3) -> np.ndarray:
    """Multiples of 1/255, so that pictures hold them exactly."""
    return (np.random.default_rng(0).integers(0, 256, (count, *SHAPE)) / np.float32(255.0)).astype(np.float32)


def export_onnx(
    model: nn.Module, path: Path, *, dynamo: bool, shape: tuple = SHAPE, batch: int | None = None, **more: Any
) -> Path:
    """Save by one of torch's two exporters, for any batch size unless one is given."""
    x = torch.rand(batch or 2, *shape)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            dims = None if batch else ({0: torch.export.Dim("n")},)
            torch.onnx.export(model, (x,), path, dynamo=True, dynamic_shapes=dims, verbose=False, **more)
        else:
            axes = None if batch else {"x": {0: "n"}}
            torch.onnx.export(model, (x,), path, dynamo=False, dynamic_axes=axes, input_names=["x"], **more)
    return path


def export_pt2(model: nn.Module, path: Path, *, shape: tuple = SHAPE, batch: int | None = None) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dims = None if batch else ({0: torch.export.Dim("n")},)
        program = torch.export.export(model, (torch.rand(batch or 2, *shape),), dynamic_shapes=dims)
        torch.export.save(program, path)
    return path


def export_torchscript(model: nn.Module, path: Path, *, script: bool = False) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.jit.script(model) if script else torch.jit.trace(model, torch.rand(2, *SHAPE))
        made.save(str(path))
    return path


def save_vit(folder: Path) -> Any:
    """A Hugging Face vision transformer built from a config, with its image processor."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor
    from transformers.utils import logging as hub_logging

    hub_logging.set_verbosity_error()
    hub_logging.disable_progress_bar()
    names = ["cat", "dog", "owl"]
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
        id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)},
    )  # fmt: skip
    torch.manual_seed(0)
    model = ViTForImageClassification(config).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
        processor = ViTImageProcessor(
            size={"height": 16, "width": 16}, image_mean=[0.5, 0.4, 0.3], image_std=[0.2, 0.3, 0.4]
        )
        processor.save_pretrained(folder)
    return model, processor


def save_bert(folder: Path) -> Any:
    """A tiny text classifier with a tokenizer of ten words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
    from transformers.utils import logging as hub_logging

    hub_logging.set_verbosity_error()
    hub_logging.disable_progress_bar()
    words = ["[PAD]", "[UNK]", "good", "bad", "film", "very", "not", "a", "the", "was"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, id2label={0: "negative", 1: "positive"}, label2id={"negative": 0, "positive": 1},
    )  # fmt: skip
    torch.manual_seed(0)
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return model, fast


class JaxNet:
    """ConvNet's head on flat inputs, computed by JAX: the protocol of `cs.Classifier` for other libraries."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        net = conv_net()
        weights = [(w.weight.detach().numpy(), w.bias.detach().numpy()) for w in (net.head[1], net.head[3])]

        def function(x: Any) -> Any:
            (first, first_bias), (second, second_bias) = weights
            return jax.nn.softplus(x @ first.T + first_bias) @ second.T + second_bias

        self.logits = jax.jit(function)
        self.vjp = jax.jit(lambda x, cotangent: jax.vjp(function, jnp.asarray(x))[1](cotangent)[0])


jax_net = JaxNet
