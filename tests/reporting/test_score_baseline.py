"""The pytest fixture `clever_baseline`: baselines are kept, compared, and refused where they do not belong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TEST = """
import os

import torch

import cleverscore as cs

torch.manual_seed(0)
images = torch.rand(30, 6)
model = torch.nn.Linear(6, 3)
noise = float(os.environ.get("NOISE", "0"))


class Scaled(torch.nn.Module):
    # The bias moves the boundary towards every input without changing its class: margins shrink.
    def forward(self, x):
        logits = model(x)
        top = logits.max(1, keepdim=True)
        hot = torch.nn.functional.one_hot(logits.argmax(1), 3)
        share = float(os.environ.get("FACTOR", "1"))
        wobble = torch.sin(997.0 * x.detach().sum(1, keepdim=True)) * noise
        return logits - hot * ((1.0 - share) + wobble) * (logits - logits.sort(1).values[:, 1:2]).detach()


def test_model(clever_baseline):
    count = int(os.environ.get("COUNT", "30"))
    scores = clever_baseline(cs.Classifier(Scaled()), images[:count], p=2, blocks=12, block_size=4)
    assert len(scores) == count
"""


def run(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "cleverscore.pytest_plugin", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )


def test_a_baseline_is_kept_and_compared(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(TEST)
    missing = run(tmp_path, "--clever-compare-fail=median:10%")
    assert missing.returncode == 1 and "make it with --clever-save" in missing.stdout
    kept = run(tmp_path, "--clever-save")
    assert kept.returncode == 0, kept.stdout
    (path,) = (tmp_path / ".clever-baselines").iterdir()
    content = json.loads(path.read_text())
    assert path.name == "test_model.py--test_model.json" and len(content["scores"]) == 30
    for options, environment, code, words in (
        (["--clever-compare-fail=median:10%"], {}, 0, "PASS"),
        (["--clever-compare-fail=mean:10%"], {"FACTOR": "0.85"}, 1, "-15.0%"),
        (["--clever-compare-fail=median:20%"], {"FACTOR": "0.85"}, 0, "PASS"),
        (["--clever-compare-fail=median:10%"], {"FACTOR": "0.85"}, 1, "drop against the baseline"),
        (["--clever-compare-fail=mean:10%"], {"FACTOR": "0.9", "NOISE": "0.6"}, 0, "UNDECIDED"),
        (["--clever-compare-fail=mean:10%"], {"COUNT": "20"}, 1, "has other inputs"),
        (["--clever-compare-fail=worst:10%"], {}, 1, "write median:SHARE"),
    ):
        done = run(tmp_path, *options, **environment)
        assert done.returncode == code and words in done.stdout, (options, environment, done.stdout)
