"""Memory of our own processes."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import resource, torch
from cleverscore.runs.allocator import keep_freed_pages
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(6 * 2**20)  # 24 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
keep_freed_pages()
faults()
print(faults())
"""


def test_freed_pages_stay_with_the_process() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc keeps pages")
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    # 20 tensors of 6,144 pages each would fault 122,880 times.
    assert int(done.stdout) < 10_000


def test_a_library_call_leaves_the_allocator_alone() -> None:
    code = (
        "import sys, torch, cleverscore as cs\n"
        "cs.clever(cs.Classifier(torch.nn.Linear(4, 3)), torch.rand(2, 4), p=2, blocks=10, block_size=8)\n"
        "sys.exit('cleverscore.runs.allocator' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
