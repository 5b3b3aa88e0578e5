"""The pipelines of docs/gate.md, run step by step in a shell; what `pip install` would bring is installed here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.loading import nets

PAGE = Path(__file__).parents[2] / "docs" / "gate.md"
BLOCKS = dict(zip(("github", "gitlab"), re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL), strict=True))
STEP = re.compile(r"^ +- (?:run: )?((?:pip|cleverscore) .*)$", re.MULTILINE)


def steps(name: str) -> list[str]:
    return STEP.findall(BLOCKS[name])


def in_a_shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-ec", command], cwd=folder, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model.onnx, data.npz and runs/released."""
    folder = tmp_path_factory.mktemp("project")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)).eval()
    x = torch.rand(24, 1, 4, 4)
    nets.export_onnx(model, folder / "model.onnx", shape=x.shape[1:], dynamo=False)
    np.savez(folder / "data.npz", x=x.numpy(), y=model(x).argmax(1).numpy())
    (score,) = (step for step in steps("github") if step.startswith("cleverscore score"))
    assert in_a_shell(score.replace("runs/new", "runs/released"), folder).returncode == 0
    return folder


@pytest.mark.slow
def test_the_steps_of_the_pipelines_run_as_they_stand(project: Path) -> None:
    (install, *commands), gitlab = (steps(name) for name in BLOCKS)
    assert gitlab == [install, *commands]
    extras = re.fullmatch(r"pip install 'cleverscore\[(.*)\]'", install)
    assert extras and set(extras[1].split(",")) == {"onnx", "attacks", "report"}
    assert [command.split()[1] for command in commands] == ["score", "gate", "report"]
    for command in commands:
        done = in_a_shell(command, project)
        assert done.returncode == 0, done.stderr
    suite = ET.parse(project / "gate.xml").getroot()
    assert list(suite.iter("testcase")) and not list(suite.iter("failure"))
    assert (project / "report.html").stat().st_size > 10_000
