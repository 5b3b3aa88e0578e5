"""One network saved in every format gives the same scores."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import cleverscore as cs
from cleverscore.loading.batches import FixedBatch
from tests.loading import nets

HERE = "tests.loading.nets"


def scores(classifier: cs.Classifier, x: np.ndarray) -> np.ndarray:
    return cs.clever(classifier, x, p=2, radius=0.5, blocks=15, block_size=16, workers=2).values


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return scores(cs.Classifier(nets.conv_net()), nets.inputs())


def safetensors_weights(folder: Path) -> str:
    save_file(nets.conv_net().state_dict(), folder / "w.safetensors")
    return f"{HERE}:blank_net?weights={folder / 'w.safetensors'}"


def checkpoint_weights(folder: Path) -> str:
    torch.save(nets.conv_net().state_dict(), folder / "w.pt")
    return f"{HERE}:blank_net?weights={folder / 'w.pt'}"


def training_checkpoint(folder: Path) -> str:
    state = {f"module.{name}": value for name, value in nets.conv_net().state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, folder / "w.pth")
    return f"{HERE}:blank_net?weights={folder / 'w.pth'}"


FORMATS = {
    "factory": lambda folder: f"{HERE}:conv_net?classes=4&width=6&name=7",
    "factory and safetensors": safetensors_weights,
    "factory and checkpoint": checkpoint_weights,
    "factory and training checkpoint": training_checkpoint,
    "traced TorchScript": lambda folder: nets.export_torchscript(nets.conv_net(), folder / "net.ts"),
    "scripted TorchScript": lambda folder: nets.export_torchscript(nets.conv_net(), folder / "net.pt", script=True),
    "torch.export": lambda folder: nets.export_pt2(nets.conv_net(), folder / "net.pt2"),
    "torch.export, batch of 1": lambda folder: nets.export_pt2(nets.conv_net(), folder / "net.pt2", batch=1),
    "ONNX": lambda folder: nets.export_onnx(nets.conv_net(), folder / "net.onnx", dynamo=True),
    "ONNX, old exporter": lambda folder: nets.export_onnx(nets.conv_net(), folder / "net.onnx", dynamo=False),
    "ONNX, batch of 1": lambda folder: nets.export_onnx(nets.conv_net(), folder / "net.onnx", dynamo=True, batch=1),
    "ONNX, old exporter, batch of 2": lambda folder: nets.export_onnx(
        nets.conv_net(), folder / "net.onnx", dynamo=False, batch=2
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_one_network_in_every_format_has_the_same_scores(name: str, expected: np.ndarray, tmp_path: Path) -> None:
    model = FORMATS[name](tmp_path)
    classifier = cs.load_model(model)
    assert scores(classifier, nets.inputs()) == pytest.approx(expected, rel=1e-4)


def test_a_file_is_known_by_its_content(expected: np.ndarray, tmp_path: Path) -> None:
    made = nets.export_onnx(nets.conv_net(), tmp_path / "net.onnx", dynamo=False)
    renamed = made.rename(tmp_path / "model.bin")
    assert scores(cs.load_model(renamed), nets.inputs()) == pytest.approx(expected, rel=1e-4)


def test_a_function_and_a_module_have_the_same_scores(expected: np.ndarray) -> None:
    net = nets.conv_net().requires_grad_(False)
    assert scores(cs.Classifier(lambda x: net(x)), nets.inputs()) == pytest.approx(expected, rel=1e-4)


def test_a_pickled_module_needs_permission(expected: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save(nets.conv_net(), path)
    with pytest.raises(cs.CleverError, match="allow-pickle"):
        cs.load_model(path)
    assert scores(cs.load_model(path, allow_pickle=True), nets.inputs()) == pytest.approx(expected, rel=1e-4)


def test_jax_gives_torchs_scores() -> None:
    x = np.random.default_rng(0).random((3, 96), dtype=np.float32)
    net = nets.conv_net().head.requires_grad_(False)
    expected = scores(cs.Classifier(lambda x: net(x)), x)  # a function: no shortcut for matrices, the same points
    assert scores(cs.Classifier(nets.JaxNet()), x) == pytest.approx(expected, rel=1e-4)
    assert scores(cs.load_model(f"{HERE}:jax_net"), x) == pytest.approx(expected, rel=1e-4)


def test_a_hugging_face_folder_brings_its_preprocessing_and_names(tmp_path: Path) -> None:
    from PIL import Image

    model, processor = nets.save_vit(tmp_path / "vit")
    classifier = cs.load_model(tmp_path / "vit")
    assert classifier.class_names == ("cat", "dog", "owl") and classifier.input_shape == (3, 16, 16)
    assert classifier.bounds == (0.0, 1.0)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 23, 31, 3)).astype(np.uint8)
    (tmp_path / "pictures" / "owl").mkdir(parents=True)
    for i, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / "pictures" / "owl" / f"{i}.png")
    images, labels = cs.load_data(tmp_path / "pictures", classifier)
    assert labels is not None and labels.tolist() == [2] * 5
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        values = processor([Image.fromarray(picture) for picture in pixels], return_tensors="pt")["pixel_values"]
        logits = model(values).logits
    assert classifier(images).detach().numpy() == pytest.approx(logits.numpy(), abs=1e-5)
    mean, std = (torch.tensor(v)[:, None, None] for v in (processor.image_mean, processor.image_std))
    plain = cs.Classifier(lambda x: model(pixel_values=(x - mean) / std).logits)
    assert scores(classifier, images[:2]) == pytest.approx(scores(plain, images[:2]), rel=1e-4)


def test_a_text_classifier_is_scored_on_embeddings(tmp_path: Path) -> None:
    model, tokenizer = nets.save_bert(tmp_path / "bert")
    texts = ["the film was very good", "not good", "a bad film"]
    (tmp_path / "texts.csv").write_text("text,label\n" + "\n".join(f"{text},positive" for text in texts))
    classifier = cs.load_model(tmp_path / "bert")
    images, labels = cs.load_data(f"{tmp_path / 'texts.csv'}?text=text&label=label", classifier)
    assert images.shape == (3, 5, 16) and labels.tolist() == [1, 1, 1]
    with torch.no_grad():
        expected = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in texts])
    assert classifier(images).detach().numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    alone = cs.clever(classifier, images, p="inf", radius=0.2, blocks=12, block_size=8)
    assert all(0 < value <= 0.2 for value in alone.values)
    with pytest.raises(cs.CleverError, match="which column"):
        cs.load_data(tmp_path / "texts.csv", classifier)


def test_a_fixed_batch_takes_any_number() -> None:
    net = nn.Linear(3, 2)

    class Only(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert len(x) == 4
            return net(x)

    for count in (1, 4, 6):
        x = torch.rand(count, 3)
        assert torch.allclose(FixedBatch(Only(), 4)(x), net(x))


def test_exported_layers_are_layers_again(tmp_path: Path) -> None:
    exported = nets.export_pt2(nets.conv_net(), tmp_path / "net.pt2")
    module = cs.load_model(exported).module
    found = {type(layer) for layer in module.modules()}
    assert {nn.Conv2d, nn.BatchNorm2d, nn.Linear} <= found
    torch.fx.symbolic_trace(module)
    made = nets.export_onnx(nets.conv_net(), tmp_path / "net.onnx", dynamo=False)
    module = cs.load_model(made).module
    assert {nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d} <= {type(layer) for layer in module.modules()}
    torch.fx.symbolic_trace(module)
