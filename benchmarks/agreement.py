"""Does a score rank inputs as attacks do? `python -m benchmarks.agreement --folder NETWORKS [--work DIR] [--out docs]`.

NETWORKS is what `python -m benchmarks.trained_networks` made. For each network and norm, scores of 16 inputs are
compared with a referee: the smallest distance that any attack in ATTACKS found. Scores are about the whole ball around
an input, so attacks may leave the input box. Scores in the box (sharp-box) are compared with attacks that stay in it
(box-attack).

Every (network, norm, method, seed) is a piece of work, kept as one file in --work, so an interrupted run goes on;
--again computes pieces anew. Referees depend on the networks and attacks alone. With --only table, nothing is
computed: what --work holds is summarised.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import cleverscore as cs
from benchmarks.agreement_tables import NORMS, Task, summarise
from benchmarks.referees import ATTACKS, EFFORTS, LONG, OTHERS, Case, attacked, make_case, runs
from benchmarks.score_methods import METHODS
from benchmarks.trained_networks import LARGE, NAMES, load

NETWORKS = tuple(name for name in NAMES if name not in LARGE)
# l1 takes longest and says least: one network of each of six kinds.
L1_NETWORKS = ("mlp-relu", "mlp-gelu-squared", "robust-mlp-l2", "cnn-max-pool", "mnist-net_256x4", "zoo:mnist-mlp")

SEEDED = ("sharp",)
# Inputs where a method takes minutes for each: (method, network) -> inputs.
FEWER = {
    ("paper", "zoo:cifar-cnn"): 6, ("paper", "zoo:cifar-dd"): 6, ("paper", "zoo:cifar-brelu"): 6,
}  # fmt: skip
ART_NETWORKS = ("mlp-relu", "mlp-gelu-squared", "robust-mlp-l2", "mnist-net_256x4", "zoo:mnist-mlp")
NESTED_NETWORKS = (*L1_NETWORKS, "mnist-net_256x2", "mnist-net_256x6", "ffnnSIGMOID__Point_6x200", "mlp-silu")
# What takes long, or says the same everywhere: method -> networks.
ONLY_FOR = {
    "sharp-25": L1_NETWORKS, "sharp-alone": NESTED_NETWORKS, "sharp-near": NESTED_NETWORKS, "art": ART_NETWORKS,
}  # fmt: skip


@lru_cache(maxsize=4)
def _loaded(name: str, folder: str, count: int) -> tuple[cs.Classifier, torch.Tensor, torch.Tensor]:
    return load(name, folder, count)


@lru_cache(maxsize=2)
def _case(name: str, norm: str, folder: str, inputs: int) -> Case:
    classifier, every, _labels = _loaded(name, folder, inputs + OTHERS)
    return make_case(classifier, every[:inputs], every[inputs:], NORMS[norm], EFFORTS.get(name, LONG))


@lru_cache(maxsize=1)
def source() -> str:
    """A digest of the package's code, by which pieces of different versions are told apart."""
    digest = hashlib.sha256()
    root = Path(cs.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def compute(task: Task, folder: str, inputs: int, options: dict[str, Any], work: str) -> tuple[Task, float, str]:
    """Compute one piece and keep it; an error is reported, not raised, so that other pieces go on."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    caught: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            classifier, every, _labels = _loaded(task.network, folder, inputs + OTHERS)
            x, p = every[:inputs], NORMS[task.norm]
            if task.method.startswith("attack-"):
                case = _case(task.network, task.norm, folder, inputs)
                piece = attacked(task.method.removeprefix("attack-"), case, task.seed)
            else:
                x = x[: FEWER.get((task.method, task.network), inputs)]
                piece = asdict(METHODS[task.method](classifier, x, p, task.seed, options))
            caught = sorted(
                {str(warning.message) for warning in seen if issubclass(warning.category, cs.CleverWarning)}
            )
    except Exception as error:
        return task, time.perf_counter() - began, f"{type(error).__name__}: {error}"
    piece = {
        **asdict(task), "inputs": len(x), **piece, "warnings": caught, "source": source(), "torch": torch.__version__,
        "wall_seconds": time.perf_counter() - began, "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    path = Path(work) / task.name
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(piece) + "\n")
    part.replace(path)
    return task, time.perf_counter() - began, ""


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """All pieces that were asked for, referees first."""
    found = []
    pairs = [
        (network, norm)
        for network in arguments.networks
        for norm in arguments.norms
        if norm != "1" or network in L1_NETWORKS
    ]
    if arguments.only in (None, "referees"):
        found += [
            Task(network, norm, f"attack-{attack}", 0)
            for network, norm in pairs
            for attack in arguments.attacks
            if runs(attack, NORMS[norm])
        ]
    if arguments.only in (None, "scores"):
        found += [
            Task(network, norm, method, seed)
            for network, norm in pairs
            for method in arguments.methods
            for seed in range(arguments.seeds if method in SEEDED else 1)
            if network in ONLY_FOR.get(method, (network,))
        ]
    return found


def run(arguments: argparse.Namespace) -> None:
    arguments.work.mkdir(parents=True, exist_ok=True)
    wanted = [task for task in tasks(arguments) if arguments.again or not (arguments.work / task.name).is_file()]
    options = {"art": tuple(arguments.art)}
    rest = (str(arguments.folder), arguments.inputs, options, str(arguments.work))
    print(f"{len(wanted)} pieces to compute", flush=True)

    def tell(task: Task, seconds: float, error: str) -> None:
        print(f"{task.network} l{task.norm} {task.method} {task.seed}: {seconds:.1f} s {error}", flush=True)

    if arguments.processes == 1:
        for task in wanted:
            tell(*compute(task, *rest))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        for done in as_completed([pool.submit(compute, task, *rest) for task in wanted]):
            tell(*done.result())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of benchmarks.trained_networks")
    parser.add_argument("--work", type=Path, default=Path("runs/agreement"), help="where pieces are kept")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--only", choices=("referees", "scores", "table"), help="compute or write one part")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--norms", nargs="+", choices=list(NORMS), default=["2", "inf", "1"])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--art", type=int, nargs=3, default=(40, 32, 10), metavar=("BLOCKS", "SIZE", "POOL"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="compute pieces that are there already")
    arguments = parser.parse_args()
    if arguments.only != "table":
        run(arguments)
    if arguments.only in (None, "table"):
        summarise(arguments)


if __name__ == "__main__":
    main()
