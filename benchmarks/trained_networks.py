"""Classifiers on which scores are compared with attacks: trained here, shipped, or trained by others.

    python -m benchmarks.trained_networks --folder NETWORKS --mnist MNIST --cifar CIFAR
        [--others OTHERS] [--data DATA] [--pictures PICTURES] [--only NAME ...]

Trains what NETWORKS does not hold yet and keeps it there as safetensors (one to two minutes each on one core). The
folders given are kept in NETWORKS/folders.json, so that `load` needs no other argument:

    classifier, images, labels = load("mlp-relu", NETWORKS)

MNIST       the four idx files.
CIFAR       the binary files of CIFAR-10.
OTHERS      networks that nobody here trained: mnist-net_256x{2,4,6}.onnx, ffnnSIGMOID__Point_6x200.onnx and
            mnist_small_0_3.safetensors.
DATA        mobilenet_v1.onnx and resnet50.onnx, which take RGB in [0, 1].
PICTURES    ImageNet pictures NNN_*.JPEG, NNN being the class.

A method may be tuned on networks whose role is "tuning"; "held_out" ones, of similar kinds, are for checking only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import cleverscore as cs
from cleverscore.errors import LoadError
from cleverscore.loading.zoo import cifar10, mnist

Images = tuple[torch.Tensor, torch.Tensor]
STATISTICS = {"mnist": ((0.1307,), (0.3081,)), "cifar": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))}
BATCH = 128
SLICE = 32  # test images classified at a time


def mlp(widths: tuple[int, ...], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for inside, outside in zip((784, *widths), widths, strict=False):
        layers += [nn.Linear(inside, outside), activation()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def sigmoid_mlp() -> nn.Sequential:
    """Default weights make a deep sigmoid network constant: these keep the variance (Glorot & Bengio, 2010)."""
    net = mlp((200,) * 4, nn.Sigmoid)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight, gain=4.0)  # a sigmoid's slope at zero is 1/4
            nn.init.zeros_(layer.bias)
    return net


def pooling_cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def striding_cnn() -> nn.Sequential:
    """The small network of Wong & Kolter (2018)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 49, 100), nn.ReLU(), nn.Linear(100, 10)),
    )


def averaging_cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


class Residual(nn.Module):
    """Two 3x3 convolutions with batch normalisation around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = (
            nn.Identity()
            if inside == outside
            else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def residual_cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
        *(Residual(24, 24, 1), Residual(24, 48, 2), Residual(48, 96, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)),
    )


class Block(nn.Module):
    """Attention, then two dense layers, each behind a layer normalisation and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, tokens, width = x.shape
        parts = self.projections(self.first(x)).reshape(count, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(attended.transpose(1, 2).reshape(count, tokens, width))
        return x + self.dense(self.second(x))


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al., 2021) on 16 patches of 7 x 7 pixels, averaged over patches."""

    def __init__(self, width: int = 64, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, 7)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(1))


@dataclass(frozen=True)
class Recipe:
    """How a network is built and trained: Adam with a one-cycle rate.

    loss        "cross_entropy", or "squared": on one-hot targets.
    attack      (norm, epsilon, steps) of the PGD that makes the training images adversarial, if any.
    """

    build: Callable[[], nn.Module]
    seed: int
    role: str
    epochs: int
    data: str = "mnist"
    loss: str = "cross_entropy"
    rate: float = 2e-3
    attack: tuple[str, float, int] | None = None


RECIPES = {
    "mlp-relu": Recipe(lambda: mlp((256,) * 4, nn.ReLU), 11, "tuning", 8),
    "mlp-relu-squared": Recipe(lambda: mlp((256,) * 4, nn.ReLU), 12, "held_out", 30, loss="squared"),
    "mlp-gelu-squared": Recipe(lambda: mlp((256,) * 2, nn.GELU), 13, "tuning", 15, loss="squared"),
    "mlp-tanh": Recipe(lambda: mlp((256,) * 3, nn.Tanh), 14, "tuning", 8, rate=1e-3),
    "mlp-sigmoid": Recipe(sigmoid_mlp, 15, "tuning", 12),
    "mlp-silu": Recipe(lambda: mlp((256,) * 3, nn.SiLU), 16, "held_out", 8),
    "cnn-max-pool": Recipe(pooling_cnn, 17, "tuning", 3, rate=4e-3),
    "vit": Recipe(ViT, 18, "held_out", 7, rate=4e-3),
    "robust-cnn-linf": Recipe(striding_cnn, 19, "tuning", 4, rate=4e-3, attack=("inf", 0.15, 5)),
    "robust-mlp-l2": Recipe(lambda: mlp((256,) * 2, nn.ReLU), 20, "tuning", 5, attack=("2", 1.5, 5)),
    "robust-cnn-l2": Recipe(striding_cnn, 23, "held_out", 4, rate=4e-3, attack=("2", 1.5, 5)),
    "cifar-residual": Recipe(residual_cnn, 21, "tuning", 4, data="cifar", rate=8e-3),
    "cifar-average-pool": Recipe(averaging_cnn, 22, "held_out", 4, data="cifar", rate=4e-3),
}
ROBUST = ("robust-cnn-linf", "robust-cnn-l2", "robust-mlp-l2", "ffnnSIGMOID__Point_6x200", "mnist_small_0_3")
OTHERS = (
    "mnist-net_256x2",
    "mnist-net_256x4",
    "mnist-net_256x6",
    "ffnnSIGMOID__Point_6x200",
    "mnist_small_0_3",
)
SHIPPED = tuple(f"zoo:{data}-{kind}" for data in ("mnist", "cifar") for kind in ("mlp", "cnn", "dd", "brelu"))
LARGE = ("mobilenet_v1", "resnet50")
NAMES = (*RECIPES, *OTHERS, *SHIPPED, *LARGE)


def role(name: str) -> str:
    """Whether settings were chosen while looking at a network, as some were on those of other people."""
    if name in RECIPES:
        return RECIPES[name].role
    return "held_out" if name in LARGE else "tuning"


def _images(data: str, folders: dict[str, str], part: str) -> Images:
    if data not in folders:
        raise LoadError(f"no folder of {data} is known; name it once: python -m benchmarks.trained_networks --{data}")
    if data == "mnist":
        pixels, labels = mnist.read(folders[data], "train" if part == "train" else "t10k")
    else:
        pixels, labels = cifar10.read(folders[data], part)
    return torch.from_numpy(pixels.astype(np.float32) / 255.0), torch.from_numpy(labels)


def _pictures(folder: str, size: int = 224) -> Iterator[tuple[torch.Tensor, int]]:
    """ImageNet pictures, the shorter side resized to size / 0.875, and their centre."""
    from PIL import Image

    for path in sorted(Path(folder).glob("*.JPEG")):
        picture = Image.open(path).convert("RGB")
        ratio = round(size / 0.875) / min(picture.size)
        picture = picture.resize([round(side * ratio) for side in picture.size], Image.Resampling.BILINEAR)
        left, top = ((side - size) // 2 for side in picture.size)
        pixels = np.asarray(picture.crop((left, top, left + size, top + size)), np.float32)
        yield torch.from_numpy(pixels.transpose(2, 0, 1) / 255.0), int(path.name[:3])


def perturbed(classifier: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, y: torch.Tensor, attack: tuple):
    """PGD (Madry et al., 2018) inside [0, 1] from a random start."""
    norm, epsilon, steps = attack
    rate = 2.5 * epsilon / steps
    offset = torch.empty_like(x).uniform_(-epsilon, epsilon) if norm == "inf" else 0.01 * torch.randn_like(x)
    for _ in range(steps):
        point = (x + offset).clamp(0, 1).requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(classifier(point), y, reduction="sum"), point)
        if norm == "inf":
            offset = (point.detach() - x + rate * gradient.sign()).clamp(-epsilon, epsilon)
        else:
            unit = gradient / gradient.flatten(1).norm(dim=1).clamp_min(1e-12).reshape(-1, 1, 1, 1)
            offset = point.detach() - x + rate * unit
            offset *= (epsilon / offset.flatten(1).norm(dim=1).clamp_min(1e-12)).clamp_max(1).reshape(-1, 1, 1, 1)
    return (x + offset).clamp(0, 1)


def accuracy(logits: Callable[[torch.Tensor], torch.Tensor], images: Images) -> float:
    with torch.no_grad():
        right = sum(
            int((logits(x).argmax(1) == y).sum())
            for x, y in zip(*(tensor.split(500) for tensor in images), strict=True)
        )
    return right / len(images[0])


def train(name: str, folders: dict[str, str]) -> tuple[nn.Module, dict[str, str]]:
    """A trained network and what to know of it; mirrored CIFAR pictures count as pictures too."""
    recipe = RECIPES[name]
    torch.manual_seed(recipe.seed)
    mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in STATISTICS[recipe.data])
    net = recipe.build()
    images, labels = _images(recipe.data, folders, "train")
    steps = len(images) // BATCH
    optimiser = torch.optim.Adam(net.parameters(), lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=recipe.epochs * steps)

    def logits(x: torch.Tensor) -> torch.Tensor:
        return net((x - mean) / std)

    began, total = time.perf_counter(), 0.0
    for epoch in range(recipe.epochs):
        net.train()
        order, total = torch.randperm(len(images)), 0.0
        for step in range(steps):
            rows = order[step * BATCH : (step + 1) * BATCH]
            x, y = images[rows], labels[rows]
            if recipe.data == "cifar":
                mirrored = torch.rand(len(x), 1, 1, 1) < 0.5
                x = torch.where(mirrored, x.flip(3), x)
            if recipe.attack is not None:
                x = perturbed(logits, x, y, recipe.attack)
            outputs = logits(x)
            if recipe.loss == "squared":
                loss = functional.mse_loss(outputs, functional.one_hot(y, 10).float())
            else:
                loss = functional.cross_entropy(outputs, y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += float(loss.detach())
        print(f"{name}: epoch {epoch + 1}, loss {total / steps:.4g}, {time.perf_counter() - began:.0f} s", flush=True)
    net.eval()
    notes = {
        "accuracy": f"{accuracy(logits, _images(recipe.data, folders, 'test')):.4f}",
        "seed": str(recipe.seed),
        "role": recipe.role,
        "loss": f"{total / steps:.4g}",
        "seconds": f"{time.perf_counter() - began:.0f}",
        "torch": torch.__version__,
    }
    return net, notes


def _folders(folder: Path) -> dict[str, str]:
    path = folder / "folders.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def notes(name: str, folder: Path | str) -> dict[str, str]:
    """What was written down when a network was trained."""
    with safe_open(Path(folder) / f"{name}.safetensors", "pt") as stored:
        return dict(stored.metadata() or {})


def _classifier(name: str, folder: Path, folders: dict[str, str]) -> cs.Classifier:
    bounds = (0.0, 1.0)
    if name in RECIPES:
        path = folder / f"{name}.safetensors"
        if not path.is_file():
            raise LoadError(f"{path} does not exist; train it: python -m benchmarks.trained_networks --only {name}")
        net = RECIPES[name].build()
        net.load_state_dict(load_file(path))
        mean, std = STATISTICS[RECIPES[name].data]
        shape = (1, 28, 28) if RECIPES[name].data == "mnist" else (3, 32, 32)
        return cs.Classifier(net.eval(), bounds=bounds, mean=mean, std=std, name=name, input_shape=shape)
    if name in SHIPPED:
        return cs.load_model(name)
    kind = "others" if name in OTHERS else "data"
    if name not in NAMES or kind not in folders:
        raise LoadError(
            f"network {name!r}: choose one of {', '.join(NAMES)}, and name its folder once: "
            f"python -m benchmarks.trained_networks --{kind} FOLDER"
        )
    if name == "mnist_small_0_3":
        net = striding_cnn()
        net.load_state_dict(load_file(Path(folders[kind]) / f"{name}.safetensors"))
        return cs.Classifier(net.eval(), bounds=bounds, name=name, input_shape=(1, 28, 28))
    return cs.load_model(Path(folders[kind]) / f"{name}.onnx", bounds=bounds, name=name)


def load(name: str, folder: Path | str, count: int = 16) -> tuple[cs.Classifier, torch.Tensor, torch.Tensor]:
    """The network `name`, and the first `count` test images in [0, 1] that it classifies correctly, with labels."""
    folder = Path(folder)
    folders = _folders(folder)
    classifier = _classifier(name, folder, folders)
    if name in LARGE:
        if "pictures" not in folders:
            raise LoadError("no folder of ImageNet pictures is known; name it once with --pictures")
        found: list[tuple[torch.Tensor, int]] = []
        for picture, label in _pictures(folders["pictures"]):
            with torch.no_grad():
                if int(classifier(picture[None]).argmax()) == label:
                    found.append((picture, label))
            if len(found) == count:
                break
        return classifier, torch.stack([picture for picture, _ in found]), torch.tensor([label for _, label in found])
    images, labels = _images("cifar" if "cifar" in name else "mnist", folders, "test")
    images = images.reshape(-1, *(classifier.input_shape or images.shape[1:]))
    right: list[int] = []
    for start in range(0, len(images), SLICE):  # a few at a time: some of these networks are slow
        with torch.no_grad():
            good = classifier(images[start : start + SLICE]).argmax(1) == labels[start : start + SLICE]
        right += (start + good.nonzero()[:, 0]).tolist()
        if len(right) >= count:
            break
    return classifier, images[right[:count]], labels[right[:count]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where trained weights are kept")
    for name in ("mnist", "cifar", "others", "data", "pictures"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--again", action="store_true", help="train also what is there already")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folders = _folders(arguments.folder)
    for name in ("mnist", "cifar", "others", "data", "pictures"):
        if getattr(arguments, name) is not None:
            folders[name] = str(getattr(arguments, name).resolve())
    (arguments.folder / "folders.json").write_text(json.dumps(folders, indent=1) + "\n")
    for name in arguments.only:
        path = arguments.folder / f"{name}.safetensors"
        if arguments.again or not path.is_file():
            net, known = train(name, folders)
            save_file(net.state_dict(), path.with_suffix(".part"), metadata=known)
            path.with_suffix(".part").replace(path)
        known = notes(name, arguments.folder)
        print(f"{name}: {known['role']}, seed {known['seed']}, accuracy {float(known['accuracy']):.2%}", flush=True)


if __name__ == "__main__":
    main()
