"""Train the shipped networks: `python -m cleverscore.loading.zoo.train --mnist FOLDER --cifar FOLDER [--only NAME]`.

SGD with Nesterov momentum 0.9, as in the authors' code. Their 50 epochs at a constant rate are replaced by a shorter
cosine schedule, which reaches about the same accuracy in a fraction of the time. The first 5,000 training images are
held out, as in their code, so that no choice depends on a test image.

Distillation at temperature T computes losses and soft labels from logits / T. A network that is trained in this way is
an ordinary network whose output layer is multiplied by T at the end. So the teacher would be the shipped CNN with its
output layer multiplied by T, and its soft labels are the softmax of the CNN as it is shipped. The student is a new
network that is trained with these labels; then its output layer is multiplied by T.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import nn

from cleverscore.loading.zoo import cifar10, mnist, shipped
from cleverscore.loading.zoo.shipped import DATA_FOLDER, NETWORKS, SHIPPED_IMAGES

HELD_OUT = 5_000
TEMPERATURE = 100.0
CIFAR_SPREAD = 0.25  # standard deviation of CIFAR-10's pixels in [0, 1]


@dataclass(frozen=True)
class Recipe:
    """The training settings of one network."""

    epochs: int
    rate: float
    weight_decay: float
    batch: int = 128
    warm_up: float = 0.0  # share of the steps in which the rate rises to `rate`
    shift: int = 0  # images are moved by up to this many pixels in each direction
    mirror: bool = False  # half of the images are mirrored
    he: float = 0.0  # initial weights after He et al. (2015), for inputs of this standard deviation; 0: torch's
    dropout: float = 0.5
    teacher: str = ""  # the network whose soft labels are learnt; "": plain labels
    half: bool = True  # weights are stored in half precision


_CIFAR = Recipe(
    epochs=7, rate=0.02, weight_decay=5e-4, batch=64, warm_up=0.1, shift=2, mirror=True, he=CIFAR_SPREAD, dropout=0.2
)
RECIPES = {
    "mnist-mlp": Recipe(epochs=20, rate=0.1, weight_decay=0.0, half=False),
    "mnist-cnn": Recipe(epochs=12, rate=0.05, weight_decay=5e-4, shift=1, half=False),
    "mnist-dd": Recipe(epochs=8, rate=0.05, weight_decay=5e-4, shift=1, teacher="mnist-cnn"),
    "mnist-brelu": Recipe(epochs=8, rate=0.05, weight_decay=5e-4, warm_up=0.1, shift=1, he=0.3),
    "cifar-mlp": Recipe(epochs=15, rate=0.05, weight_decay=5e-4, mirror=True, he=CIFAR_SPREAD),
    "cifar-cnn": _CIFAR,
    "cifar-dd": replace(_CIFAR, epochs=4, teacher="cifar-cnn"),
    "cifar-brelu": replace(_CIFAR, epochs=5),
}


def _moved(images: torch.Tensor, shift: int, generator: torch.Generator) -> torch.Tensor:
    """Shift all images by the same random offset of up to `shift` pixels, filling with black."""
    across, down = (int(torch.randint(-shift, shift + 1, (), generator=generator)) for _ in range(2))
    side = images.shape[-1]
    padded = nn.functional.pad(images, (shift, shift, shift, shift), value=-0.5)
    return padded[:, :, shift + down : shift + down + side, shift + across : shift + across + side]


def _mirrored(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    chosen = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    return torch.where(chosen, images.flip(-1), images)


def _start(network: nn.Module, recipe: Recipe) -> None:
    """Give a new network the initial weights and the dropout of `recipe`."""
    first = True
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = recipe.dropout
        if recipe.he and isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            with torch.no_grad():
                if layer.bias is not None:
                    layer.bias.zero_()
                if first:
                    layer.weight /= recipe.he
            first = False


def _rate(recipe: Recipe, progress: float) -> float:
    """The learning rate after the share `progress` of all steps: a linear warm-up, then a cosine."""
    if progress < recipe.warm_up:
        return recipe.rate * max(progress / recipe.warm_up, 1e-3)
    return 0.5 * recipe.rate * (1.0 + math.cos(math.pi * (progress - recipe.warm_up) / (1.0 - recipe.warm_up)))


def _logits(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    network.eval()
    with torch.no_grad():
        return torch.cat([network(part) for part in torch.split(images, 500)])


def accuracy(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of correctly classified images."""
    return float((_logits(network, images).argmax(1) == labels).float().mean())


def read(data: str, folder: Path, part: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images as bytes and labels of `data` ("mnist" or "cifar"); `part` is "train" or "test"."""
    if data == "cifar":
        return cifar10.read(folder, part)
    return mnist.read(folder, "t10k" if part == "test" else part)


def centred(raw: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Images in [-0.5, 0.5], the input range of the networks."""
    return torch.from_numpy(raw.astype(np.float32) / 255.0 - 0.5)


def train(
    name: str,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int = 0,
    recipe: Recipe | None = None,
    teacher: nn.Module | None = None,
) -> nn.Module:
    """Train the network `name` of the zoo on images in [-0.5, 0.5], with soft labels if there is a `teacher`.

    The first HELD_OUT images are not learnt; the accuracy on them is printed after every epoch. With a teacher, the
    output layer is multiplied by the temperature at the end.
    """
    recipe = recipe or RECIPES[name]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = NETWORKS[name].build()
    _start(network, recipe)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(
        network.parameters(), lr=recipe.rate, momentum=0.9, nesterov=True, weight_decay=recipe.weight_decay
    )
    kept_images, kept_labels = images[HELD_OUT:], labels[HELD_OUT:]
    goals = kept_labels if teacher is None else _logits(teacher, kept_images).softmax(1)
    steps = len(kept_labels) // recipe.batch
    for epoch in range(recipe.epochs):
        began = time.perf_counter()
        network.train()
        order = torch.randperm(len(kept_labels), generator=generator)
        total = 0.0
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = _rate(recipe, (epoch * steps + step) / (recipe.epochs * steps))
            rows = order[step * recipe.batch : (step + 1) * recipe.batch]
            batch = kept_images[rows]
            if recipe.shift:
                batch = _moved(batch, recipe.shift, generator)
            if recipe.mirror:
                batch = _mirrored(batch, generator)
            loss = nn.functional.cross_entropy(network(batch), goals[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total += float(loss.detach())
        held_out = accuracy(network, images[:HELD_OUT], labels[:HELD_OUT])
        seconds = time.perf_counter() - began
        print(
            f"{name} epoch {epoch + 1}: loss {total / steps:.4f}, held-out {held_out:.2%}, {seconds:.0f} s", flush=True
        )
    if teacher is not None:
        output = list(network.modules())[-1]
        with torch.no_grad():
            for parameter in output.parameters():
                parameter.mul_(TEMPERATURE)
    return network.eval()


def weights_of(network: nn.Module, recipe: Recipe) -> dict[str, torch.Tensor]:
    """The weights of a trained network as they are stored."""
    kind = torch.float16 if recipe.half else torch.float32
    return {key: value.to(kind).contiguous() for key, value in network.state_dict().items()}


def main() -> None:
    """Train the networks that the arguments ask for, and write their weights and the shipped images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, help="folder with the four MNIST idx files")
    parser.add_argument("--cifar", type=Path, help="folder with the six CIFAR-10 binary files")
    parser.add_argument("--only", choices=list(RECIPES), action="append", help="train this network alone; repeatable")
    parser.add_argument("--out", type=Path, default=DATA_FOLDER, help="where the weights go (default: the package)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    folders = {"mnist": arguments.mnist, "cifar": arguments.cifar}
    names = arguments.only or [name for name in RECIPES if folders[name.split("-")[0]]]
    if not names:
        parser.error("name at least one of --mnist and --cifar: the folders with the training images")
    for name in names:
        data = name.split("-")[0]
        if folders[data] is None:
            parser.error(f"{name} needs --{data}: the folder with its training images")
        raw_train, labels_train = read(data, folders[data], "train")
        raw_test, labels_test = read(data, folders[data], "test")
        if data == "mnist":
            np.savez_compressed(
                arguments.out / "mnist.npz",
                x=raw_test[:SHIPPED_IMAGES],
                y=labels_test[:SHIPPED_IMAGES].astype(np.uint8),
            )
        recipe = RECIPES[name]
        teacher = shipped.network(recipe.teacher, arguments.out) if recipe.teacher else None
        network = train(name, centred(raw_train), torch.from_numpy(labels_train), teacher=teacher)
        save_file(weights_of(network, recipe), arguments.out / f"{name}.safetensors")
        stored = shipped.network(name, arguments.out)
        share = accuracy(stored, centred(raw_test), torch.from_numpy(labels_test))
        print(f"{name}: {share:.2%} of the 10,000 test images", flush=True)


if __name__ == "__main__":
    main()
