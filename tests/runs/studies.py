"""A small study that is cut into many shards, for tests of stores and executors."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

import cleverscore as cs
from cleverscore.runs.results import StudyConfig, stored_scores
from cleverscore.runs.shards import Executor
from cleverscore.runs.signals import Stop
from cleverscore.runs.store import Store
from cleverscore.runs.study import Study
from cleverscore.scores.cost import Estimate

INPUTS, BLOCKS, BLOCK_SIZE = 8, 30, 64
# One shard holds five blocks where this is the time of an input: 8 inputs x 2 norms x 6 parts are 96 shards.
COSTS = {norm: Estimate(seconds=6.0 * INPUTS, gradients=1, points=1, memory=1, chunk_size=64, workers=1, inputs=INPUTS)
         for norm in ("2", "inf")}  # fmt: skip


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 64), nn.Softplus(), nn.Linear(64, 5))


class Waiting(nn.Module):
    """The network with `WAIT` seconds of sleep for each point: its runs last long enough to be interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(len(x) * float(os.environ.get("WAIT", "0")))
        return self.inner(x)


def study(network_seed: int = 0, inputs: int = INPUTS, **settings: object) -> Study:
    classifier = cs.Classifier(network(network_seed), bounds=(0.0, 1.0))
    images = np.random.default_rng(0).random((INPUTS, 3, 4, 4), np.float32)
    config = StudyConfig(
        "made", "drawn", ("2", "inf"), radius=1.0, block_size=BLOCK_SIZE, **{"blocks": BLOCKS, **settings}
    )
    return Study(config, classifier, images[:inputs], None, list(range(inputs)))


def run(
    folder: Path,
    *,
    executor: Executor | None = None,
    stop: Stop | None = None,
    made: Study | None = None,
    **options: object,
) -> None:
    """Compute what is missing of the study, in many shards."""
    made = made or study()
    with made.open_store(folder) as store:
        made.run(
            store, executor=executor, stop=stop, **{"chunk_size": 64, "costs": COSTS, "shard_seconds": 1.0, **options}
        )


def table(folder: Path) -> pd.DataFrame:
    """All rows of a run, apart from the time they took."""
    with Store.open(folder) as store:
        return stored_scores(store).to_frame().drop(columns="seconds")


def maxima(folder: Path) -> dict[tuple[str, int], bytes]:
    with Store.open(folder) as store:
        return {
            (norm, item.input_id): b"".join(row.tobytes() for row in item.maxima)
            for norm in ("2", "inf")
            for item in store.measurements(norm)
        }
