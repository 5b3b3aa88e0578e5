"""How much is computed: `quick` for an hour or two, `medium` for days in the background, `full` as in the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cleverscore.attacks.foolbox_adapter import EPSILONS
from cleverscore.attacks.presets import PRESETS
from paper.networks import NETWORKS

BLOCK_COUNTS = (50, 100, 250, 500)  # the numbers of blocks that the paper compares
RELEASED, PAPER = "released-code", "paper"


@dataclass(frozen=True)
class Size:
    """What is computed for one network.

    images              correctly classified ones.
    blocks, block_size  N_b and N_s.
    preset              of the attacks: how many constants CW tries.
    cw, rate            CW's iterations for each constant, and its learning rate.
    ifgsm               I-FGSM's iterations for each of its eight epsilons.
    many                images for which all numbers of blocks are compared, in blocks of `many_size`.
    released            images scored as the authors' released code does.
    group               images in one unit of work.
    """

    images: int
    blocks: int
    block_size: int
    preset: str
    cw: int
    rate: float
    ifgsm: int
    many: int
    many_size: int
    released: int
    group: int

    @property
    def searches(self) -> int:
        """How many constants CW tries."""
        return PRESETS[self.preset]["cw"].searches

    def words(self, kind: str) -> str:
        """The sizes of one kind of work."""
        if kind == "cw":
            return f"{self.searches} x {self.cw} iterations, rate {self.rate:g}"
        if kind == "ifgsm":
            return f"{len(EPSILONS)} epsilons x {self.ifgsm} iterations"
        if kind == "many":
            return f"{BLOCK_COUNTS[-1]} x {self.many_size}"
        return f"{self.blocks} x {self.block_size}"


# With a twentieth of the iterations, CW's rate on MNIST is ten times the paper's: with 0.01 it fails on most images.
_MLP = Size(20, 50, 256, "quick", cw=100, rate=0.1, ifgsm=20, many=3, many_size=128, released=5, group=10)
_MNIST = Size(20, 40, 64, "quick", cw=100, rate=0.1, ifgsm=20, many=3, many_size=16, released=5, group=5)
_CIFAR = Size(20, 20, 16, "quick", cw=60, rate=0.01, ifgsm=10, many=2, many_size=8, released=5, group=5)
_LARGE = Size(3, 12, 4, "quick", cw=20, rate=0.003, ifgsm=5, many=0, many_size=0, released=3, group=1)

QUICK = {
    "mnist-mlp": _MLP,
    "mnist-cnn": _MNIST,
    "mnist-dd": _MNIST,
    "mnist-brelu": _MNIST,
    "cifar-mlp": replace(_MLP, cw=60, rate=0.01),
    "cifar-cnn": _CIFAR,
    "cifar-dd": _CIFAR,
    "cifar-brelu": _CIFAR,
    "inception_v3": _LARGE,
    "resnet50": _LARGE,
    "mobilenet_v1": replace(_LARGE, blocks=20, block_size=8, cw=30, rate=0.001, many=1, many_size=4),
}

# Between the two (paper/medium): as much of the paper's sizes as two cores can hold in days. The first `many` images
# have 500 blocks instead of `blocks`. CW's rate is the paper's where its iterations are; with fewer it is higher.
_MEDIUM_MLP = Size(
    100, 100, 1024, "paper", cw=1000, rate=0.01, ifgsm=50, many=20, many_size=1024, released=100, group=2
)
_MEDIUM_MNIST = Size(50, 100, 128, "paper", cw=500, rate=0.02, ifgsm=50, many=10, many_size=128, released=50, group=2)
_MEDIUM_CIFAR = Size(30, 50, 64, "paper", cw=300, rate=0.01, ifgsm=50, many=10, many_size=64, released=30, group=2)
_MEDIUM_LARGE = Size(10, 30, 16, "quick", cw=100, rate=0.002, ifgsm=50, many=0, many_size=0, released=10, group=1)
MEDIUM = {
    "mnist-mlp": _MEDIUM_MLP,
    "mnist-cnn": _MEDIUM_MNIST,
    "mnist-dd": replace(_MEDIUM_MNIST, ifgsm=500),
    "mnist-brelu": _MEDIUM_MNIST,
    "cifar-mlp": _MEDIUM_MLP,
    "cifar-cnn": _MEDIUM_CIFAR,
    "cifar-dd": replace(_MEDIUM_CIFAR, ifgsm=250),
    "cifar-brelu": _MEDIUM_CIFAR,
    "inception_v3": _MEDIUM_LARGE,
    "resnet50": _MEDIUM_LARGE,
    "mobilenet_v1": replace(_MEDIUM_LARGE, images=20, blocks=50, rate=0.001, released=20),
}

# The paper: 500 blocks of 1024, CW with 1000 iterations (2000 on MNIST) and a rate for each network, I-FGSM with 50.
# It has 100 images for each network, but 500 of MNIST and CIFAR for given targets; here they are 100 everywhere.
_FULL = Size(100, 500, 1024, "paper", cw=1000, rate=0.01, ifgsm=50, many=100, many_size=1024, released=100, group=1)
FULL = {
    name: replace(
        _FULL,
        cw=2000 if network.family == "mnist" else 1000,
        ifgsm={"mnist-dd": 500, "cifar-dd": 250}.get(name, 50),
        rate={"inception_v3": 0.001, "resnet50": 0.001, "mobilenet_v1": 0.0005}.get(name, 0.01),
    )
    for name, network in NETWORKS.items()
}
