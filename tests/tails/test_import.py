from __future__ import annotations

import subprocess
import sys


def test_tails_does_not_import_torch() -> None:
    code = "import sys, cleverscore.tails as t; t.fit([[1.0, 2.0]]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
