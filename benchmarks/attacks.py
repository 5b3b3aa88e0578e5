"""Our best attack against other libraries' CW and BIM: `python -m benchmarks.attacks [--quick] [--out docs]`.

Shipped network and images, untargeted, inputs in [0, 1]. Peers run with their own defaults, except that foolbox's CW
takes --iterations and not 10,000, that ART's takes 64 images at a time and not one, which changes its time only, and
that foolbox's BIM, which has no default epsilon, takes ART's 0.3. Every peer's result is judged here: an input counts
as attacked if the network says so, and its distortion is computed in double from the adversarial input. Medians are
over all images, a failure counting as infinite; "ours / its" is the median ratio over the images where it succeeds.
ART and torchattacks are optional: pip install adversarial-robustness-toolbox==1.20.1 packaging, and
pip install --no-deps torchattacks (it pins old versions of packages that it does not need for this).
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
from cleverscore.attacks.foolbox_adapter import load_foolbox
from cleverscore.tuning import tuned

Attack = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
EPSILON = 0.3
FOOLBOX_ITERATIONS = 10_000  # its own default


class Whole(torch.nn.Module):
    """The classifier with its preprocessing: a peer that gets `classifier.module` alone attacks another function."""

    def __init__(self, classifier: cs.Classifier) -> None:
        super().__init__()
        self.inner = classifier.module
        self.logits = classifier.logits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(x)


def foolbox_attacks(model: torch.nn.Module, iterations: int) -> dict[str, Attack]:
    foolbox = load_foolbox()
    wrapped = foolbox.PyTorchModel(model, bounds=(0.0, 1.0), device="cpu")
    cw = foolbox.attacks.L2CarliniWagnerAttack(steps=iterations)
    bim = foolbox.attacks.LinfBasicIterativeAttack()
    return {
        f"foolbox CW ({iterations} iterations)": lambda x, y: cw.run(wrapped, x, foolbox.Misclassification(y)),
        f"foolbox BIM (epsilon {EPSILON})": lambda x, y: bim.run(
            wrapped, x, foolbox.Misclassification(y), epsilon=EPSILON
        ),
    }


def art_attacks(model: torch.nn.Module, shape: tuple[int, ...]) -> dict[str, Attack]:
    from art.attacks.evasion import BasicIterativeMethod, CarliniL2Method
    from art.estimators.classification import PyTorchClassifier

    estimator = PyTorchClassifier(
        model, loss=torch.nn.CrossEntropyLoss(), input_shape=shape, nb_classes=10, clip_values=(0.0, 1.0)
    )
    cw, bim = CarliniL2Method(estimator, batch_size=64, verbose=False), BasicIterativeMethod(estimator, verbose=False)

    def runner(method: Any) -> Attack:
        return lambda x, y: torch.from_numpy(method.generate(x.numpy(), y.numpy()))

    return {"ART CW (64 at a time)": runner(cw), "ART BIM": runner(bim)}


def torchattacks_attacks(model: torch.nn.Module) -> dict[str, Attack]:
    import torchattacks

    return {
        "torchattacks CW": torchattacks.CW(model),
        "torchattacks BIM": torchattacks.BIM(model),
    }


def judged(name: str, classifier: cs.Classifier, x: torch.Tensor, adversarial: torch.Tensor, seconds: float) -> dict:
    """Success and distortions of what an attack returned."""
    adversarial = adversarial.detach().to(x)
    with torch.no_grad():
        good = classifier(adversarial).argmax(1) != classifier(x).argmax(1)
    good &= ((adversarial >= -1e-6) & (adversarial <= 1 + 1e-6)).flatten(1).all(1)
    offsets = (adversarial.double() - x.double()).flatten(1)
    linf = torch.where(good, offsets.abs().amax(1), math.inf)
    l2 = torch.where(good, offsets.norm(dim=1), math.inf)
    row = {
        "attack": name,
        "linf": float(np.median(linf.numpy())),
        "l2": float(np.median(l2.numpy())),
        "sizes": {"linf": linf.numpy(), "l2": l2.numpy()},
        "success": float(good.double().mean()),
        "seconds": seconds,
    }
    print(
        f"{name:32s} linf {row['linf']:.4f}  l2 {row['l2']:.4f}  success {row['success']:.0%}  {seconds:.0f} s",
        flush=True,
    )
    return row


def number(value: float) -> str:
    return "-" if math.isinf(value) else f"{value:.4f}"


def markdown(result: dict) -> str:
    lines = [
        "<!-- written by: python -m benchmarks.attacks -->",
        f"Measured on {result['machine']} with torch {result['torch']}, {result['threads']} threads: "
        f"{result['images']} images of `zoo:mnist` on `zoo:mnist-cnn`, untargeted. Medians over all images (a failure "
        "counts as infinite, - is an infinite median). Peers run with their defaults, or as stated. Ours / its is the "
        "median ratio over the images where that attack succeeds.",
        "",
        "| attack | median linf | ours / its | median l2 | ours / its | success | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['attack']} | {number(r['linf'])} | {number(r['linf_ratio'])} | {number(r['l2'])} "
        f"| {number(r['l2_ratio'])} | {r['success']:.0%} | {r['seconds']:.0f} |"
        for r in result["rows"]
    ]
    lines += [""]
    lines += [f"Not measured: {name}, {reason}." for name, reason in result["missing"].items()]
    if result["foolbox_iterations"] < FOOLBOX_ITERATIONS:
        lines.append(
            f"foolbox's CW had {result['foolbox_iterations']} of its default {FOOLBOX_ITERATIONS} iterations, so what "
            "follows is not yet a comparison with its defaults.\n"
        )
    for norm, holds in result["no_peer_is_nearer"].items():
        lines.append(
            f"Median {norm} of our best attack no larger than that of each peer: {'yes' if holds else 'no'}.\n"
        )
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five images, short attacks, nothing written")
    parser.add_argument("--iterations", type=int, default=1000, help="of foolbox's CW; its own default is 10000")
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("docs"), help="where _attacks_benchmark.md and .json go")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    classifier = cs.load_model("zoo:mnist-cnn")
    own = classifier
    count = 5 if arguments.quick else arguments.images
    x = torch.as_tensor(cs.load_data("zoo:mnist")[0][:count])
    # The same function in its faster form, for the peers as for us: it halves the hour that they take.
    classifier = tuned(classifier, x)
    with torch.no_grad():
        logits = classifier(x)
        predicted = logits.argmax(1)
        whole = Whole(classifier).eval()
        if not (torch.equal(whole(x), logits) and torch.allclose(logits, own(x), rtol=1e-4, atol=1e-4)):
            raise SystemExit("the peers would attack another function than ours")
    preset = "quick" if arguments.quick else "default"
    rows, missing = [], {}
    for p, norm in ((math.inf, "linf"), (2.0, "l2")):
        best = cs.best_attack(classifier, x, p=p, preset=preset)
        rows.append(judged(f"ours, best in {norm}", classifier, x, best.adversarial, best.seconds))
    iterations = 50 if arguments.quick else arguments.iterations
    sources: dict[str, Callable[[], dict[str, Attack]]] = {
        "torchattacks": lambda: torchattacks_attacks(whole),
        "ART": lambda: art_attacks(whole, tuple(x.shape[1:])),
        "foolbox": lambda: foolbox_attacks(whole, iterations),
    }
    for source, make in sources.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                peers = make()
        except ImportError as error:
            missing[source] = f"which cannot be imported ({error})"
            print(f"{source}: not measured, {error}")
            continue
        for name, run in peers.items():
            began = time.perf_counter()
            adversarial = run(x, predicted)
            rows.append(judged(name, classifier, x, adversarial, time.perf_counter() - began))
    ours = {"linf": rows[0]["sizes"]["linf"], "l2": rows[1]["sizes"]["l2"]}
    for row in rows:
        for norm, sizes in row.pop("sizes").items():
            good = np.isfinite(sizes)
            row[f"{norm}_ratio"] = float(np.median(ours[norm][good] / sizes[good])) if good.any() else math.inf
    peers_rows = rows[2:]
    result = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "threads": arguments.threads,
        "images": count,
        "rows": rows,
        "missing": missing,
        "foolbox_iterations": iterations,
        "no_peer_is_nearer": {
            "linf": all(rows[0]["linf"] <= row["linf"] for row in peers_rows),
            "l2": all(rows[1]["l2"] <= row["l2"] for row in peers_rows),
        },
    }
    text = markdown(result)
    print(text)
    if not arguments.quick:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "_attacks_benchmark.md").write_text(text)
        (arguments.out / "_attacks_benchmark.json").write_text(
            json.dumps(result, indent=1).replace("Infinity", "null") + "\n"
        )


if __name__ == "__main__":
    main()
