"""Limits of an isolated process."""

import subprocess
import sys
from pathlib import Path

import pytest

from octavo.isolation import confine

pytest.importorskip("resource")


def test_no_compiled_module_is_cut_off_at_the_limit_of_file_size(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("\n".join(f"name_{number} = {number}" for number in range(2000)))
    code = (
        "import signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from octavo.isolation import confine; confine.limit(1 << 34, 60.0, 4096)\n"
        f"sys.path.insert(0, {str(tmp_path)!r}); import long; assert long.name_1999 == 1999"
    )
    source = str(Path(confine.__file__).parents[2])
    environment = {"PYTHONPATH": source}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
    assert [file.name for file in tmp_path.iterdir()] == ["long.py"]
