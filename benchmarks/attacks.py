"""Attacks side by side: `python -m benchmarks.attacks --folder NETWORKS [--work DIR] [--out docs]`.

NETWORKS is what `python -m benchmarks.trained_networks` made. All attacks stay in the input box and are untargeted.
Each result is judged by a forward pass of the network, and its distance is computed in double. Local optimality is that
of AttackBench (Cinà et al., AAAI 2025): with d_i an attack's distances, b_i the smallest that any attack here found,
and m the largest b_i, it is the mean of max(0, m - d_i) over the mean of m - b_i; a failure counts as m.

AutoAttack searches a ball of given size: it gets 98% of the distance that our attack found for an input, and is counted
where it still succeeds. Times are CPU seconds of one thread per input. Every (network, norm, attack) is kept in --work.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cleverscore as cs
from benchmarks.trained_networks import NAMES, load
from cleverscore.attacks.foolbox_adapter import load_foolbox
from cleverscore.models.optimize import tuned

NORMS = {"2": 2.0, "inf": math.inf, "1": 1.0}
NETWORKS = ("mlp-relu", "mlp-silu", "robust-mlp-l2", "mnist-net_256x2", "mnist-net_256x6", "ffnnSIGMOID__Point_6x200",
            "mnist_small_0_3", "zoo:mnist-cnn")  # fmt: skip
SHARE = 0.98  # of our distance, within which AutoAttack is asked to find something
AUTOATTACK = ("apgd-ce", "apgd-t", "fab-t")  # what decides for networks with gradients
Attack = Callable[[cs.Classifier, torch.Tensor, torch.Tensor, float], torch.Tensor]


class Whole(torch.nn.Module):
    """The classifier with its preprocessing: a peer that gets `classifier.module` alone attacks another function.

    shape   of one input, if the peer's have another shape.
    """

    def __init__(self, classifier: cs.Classifier, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.inner, self.logits, self.shape = classifier.module, classifier.logits, shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(x if self.shape is None else x.reshape(-1, *self.shape))


def ours(preset: str) -> Attack:
    def run(classifier: cs.Classifier, x: torch.Tensor, classes: torch.Tensor, p: float) -> torch.Tensor:
        return cs.best_attack(classifier, x, p=p, preset=preset, workers=1).adversarial

    return run


def foolbox(kinds: dict[float, str], **settings: Any) -> Attack:
    """One of foolbox's attacks with its own settings but for the number of steps."""

    def run(classifier: cs.Classifier, x: torch.Tensor, classes: torch.Tensor, p: float) -> torch.Tensor:
        library = load_foolbox()
        method = getattr(library.attacks, kinds[p])(**settings)
        wrapped = library.PyTorchModel(Whole(classifier).eval(), bounds=(0.0, 1.0), device="cpu")
        return method.run(wrapped, x, library.Misclassification(classes))

    return run


FMN = {1.0: "L1FMNAttack", 2.0: "L2FMNAttack", math.inf: "LInfFMNAttack"}
ATTACKS: dict[str, tuple[tuple[float, ...], Attack]] = {
    "ours, quick": ((2.0, math.inf, 1.0), ours("quick")),
    "ours, default": ((2.0, math.inf, 1.0), ours("default")),
    "ours, long": ((2.0, math.inf, 1.0), ours("long")),
    "foolbox DDN-1000": ((2.0,), foolbox({2.0: "DDNAttack"}, steps=1000)),
    "foolbox FMN-1000": ((2.0, math.inf, 1.0), foolbox(FMN, steps=1000)),
    "foolbox EAD": ((1.0,), foolbox({1.0: "EADAttack"}, steps=300)),
}


def distances(classifier: cs.Classifier, x: torch.Tensor, found: torch.Tensor, classes: torch.Tensor, p: float) -> Any:
    """||found - x||_p, infinite where the class is the same or the point lies outside the box."""
    with torch.no_grad():
        good = classifier(found).argmax(1) != classes
    good &= ((found >= -1e-6) & (found <= 1.0 + 1e-6)).flatten(1).all(1)
    sizes = torch.linalg.vector_norm((found.double() - x.double()).flatten(1), p, dim=1)
    return torch.where(good, sizes, math.inf).tolist()


def autoattack(classifier: cs.Classifier, x: torch.Tensor, classes: torch.Tensor, p: float, radii: Any) -> list[bool]:
    """Whether AutoAttack succeeds within each radius."""
    from pyautoattack import AutoAttack

    norm = {1.0: "L1", 2.0: "L2", math.inf: "Linf"}[p]
    model, beaten = Whole(classifier, tuple(x.shape[1:])).eval(), []
    images = x if x.ndim == 4 else x.reshape(len(x), 1, 1, -1)  # it knows images only
    for i, radius in enumerate(radii):
        method = AutoAttack(model, attacks=list(AUTOATTACK), eps=float(radius), norm=norm, seed=0, version="custom")
        found = method.run_standard_evaluation(images[i : i + 1], classes[i : i + 1])
        found = found[0] if isinstance(found, tuple) else found
        (size,) = distances(classifier, x[i : i + 1], found.to(x).reshape(x[i : i + 1].shape), classes[i : i + 1], p)
        beaten.append(bool(size <= radius * (1.0 + 1e-5)))
    return beaten


def measured(network: str, norm: str, attack: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One attack on one network, kept in --work."""
    path = arguments.work / f"{network}_{norm}_{attack}.json".replace(":", "-").replace(" ", "").replace(",", "_")
    if path.is_file():
        return json.loads(path.read_text())
    classifier, x, _labels = load(network, arguments.folder, arguments.inputs)
    classifier, p = tuned(classifier, x[:2]), NORMS[norm]  # the same function in its faster form, for peers as for us
    with torch.no_grad():
        classes = classifier(x).argmax(1)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if attack == "AutoAttack":
            radii = SHARE * np.array(measured(network, norm, "ours, default", arguments)["distances"])
            began = time.process_time()
            piece: dict[str, Any] = {"beaten": autoattack(classifier, x, classes, p, radii)}
        else:
            found = ATTACKS[attack][1](classifier, x, classes, p).detach().to(x)
            piece = {"distances": distances(classifier, x, found, classes, p)}
    piece["seconds"] = (time.process_time() - began) / len(x)
    path.write_text(json.dumps(piece) + "\n")
    print(f"{network} l{norm} {attack}: {piece['seconds']:.2f} s per input", flush=True)
    return piece


def optimality(sizes: np.ndarray, best: np.ndarray) -> float:
    """AttackBench's local optimality.

    >>> best = np.array([1.0, 2.0, 3.0])
    >>> optimality(best, best), optimality(np.array([1.0, 2.0, math.inf]), best), optimality(best + 1.0, best)
    (1.0, 1.0, 0.3333333333333333)
    """
    largest = float(best.max())
    return float((largest - np.minimum(sizes, largest)).mean() / (largest - best).mean())


def row(network: str, norm: str, arguments: argparse.Namespace) -> dict[str, Any]:
    names = [name for name, (norms, _run) in ATTACKS.items() if NORMS[norm] in norms]
    pieces = {name: measured(network, norm, name, arguments) for name in names}
    sizes = {name: np.array(piece["distances"], dtype=np.float64) for name, piece in pieces.items()}
    best = np.min(list(sizes.values()), axis=0)
    auto = measured(network, norm, "AutoAttack", arguments) if arguments.autoattack else None
    return {
        "network": network,
        "norm": norm,
        "inputs": len(best),
        "attacks": {
            name: {
                "optimality": optimality(sizes[name], best),
                "seconds": pieces[name]["seconds"],
                "failures": int(np.isinf(sizes[name]).sum()),
                "largest": float((sizes[name] / best).max()) if np.isfinite(sizes[name]).all() else None,
            }
            for name in names
        },
        "autoattack": None if auto is None else {"beaten": sum(auto["beaten"]), "seconds": auto["seconds"]},
    }


def markdown(result: dict[str, Any]) -> str:
    lines = [
        "<!-- written by: python -m benchmarks.attacks -->",
        f"Measured on {result['machine']} with torch {result['torch']}, one thread; untargeted, in the input box. "
        "Local optimality (AttackBench) is against the smallest distance that any of these attacks found; largest is "
        "the largest distance in units of that one. Seconds are CPU time per input.",
        "",
        "| norm | attack | networks | mean optimality | smallest | largest distance | failures | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for norm in NORMS:
        rows = [row for row in result["rows"] if row["norm"] == norm]
        for name in ATTACKS:
            found = [row["attacks"][name] for row in rows if name in row["attacks"]]
            if not found:
                continue
            values = [each["optimality"] for each in found]
            finite = [each["largest"] for each in found if each["largest"] is not None]
            lines.append(
                f"| {norm} | {name} | {len(found)} | {np.mean(values):.4f} | {min(values):.4f} "
                f"| {f'{max(finite):.3f}' if finite else ''} | {sum(each['failures'] for each in found)} "
                f"| {np.mean([each['seconds'] for each in found]):.2f} |"
            )
    tried = [row for row in result["rows"] if row["autoattack"] is not None]
    if tried:
        count, beaten = sum(row["inputs"] for row in tried), sum(row["autoattack"]["beaten"] for row in tried)
        seconds = np.mean([row["autoattack"]["seconds"] for row in tried])
        lines += [
            "",
            f"AutoAttack ({', '.join(AUTOATTACK)}) within {SHARE:.0%} of the distance of `ours, default`: succeeds for "
            f"{beaten} of {count} inputs, {seconds:.1f} CPU seconds per input.",
        ]
    lines += [
        "",
        "By network:",
        "",
        "| network | norm | attack | optimality | failures | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for each in result["rows"]:
        lines += [
            f"| {each['network']} | {each['norm']} | {name} | {found['optimality']:.4f} | {found['failures']} "
            f"| {found['seconds']:.2f} |"
            for name, found in each["attacks"].items()
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of benchmarks.trained_networks")
    parser.add_argument("--work", type=Path, default=Path("runs/attacks"), help="where measurements are kept")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--norms", nargs="+", choices=list(NORMS), default=list(NORMS))
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--autoattack", action="store_true", help="needs pip install pyautoattack")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows = [row(network, norm, arguments) for network in arguments.networks for norm in arguments.norms]
    result = {"machine": platform.machine(), "torch": torch.__version__, "rows": rows}
    text = markdown(result)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "_attacks_benchmark.md").write_text(text)
    (arguments.out / "_attacks_benchmark.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
