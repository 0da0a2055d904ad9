"""Run the tests that depend on releases of onnxruntime and onnx with each pair of them that is supported.

    python scripts/test_matrix.py
    python scripts/test_matrix.py --onnxruntime 1.29 --onnx 1.22 -- -k names

Each pair has a virtual environment of its own under ``--folder``, which is kept for the next run. Arguments
after ``--`` go to pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIMES = ("1.29", "1.30", "1.31")
ONNX = ("1.22", "1.23")
TESTS = ("tests/quantization", "tests/emission", "tests/test_pipeline.py")
EXTRA = ("pytest>=8.3", "hypothesis>=6.100", "psutil>=6", "sympy>=1.12", "pillow>=12.3", "tokenizers>=0.20")


def environment(folder: Path, runtime: str, onnx: str) -> Path:
    """The Python of an environment with these releases, made where it is not there yet."""
    home = folder / f"onnxruntime-{runtime}-onnx-{onnx}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    done = home / ".complete"
    if not done.exists():
        venv.create(home, with_pip=True, clear=True)
        wanted = [f"onnxruntime=={runtime}.*", f"onnx=={onnx}.*", *EXTRA]
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *wanted, "-e", str(ROOT)], check=True)
        done.touch()
    return python


def run(python: Path, arguments: list[str]) -> str:
    """The last line that pytest says, or why there is none."""
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *TESTS, *arguments]
    source = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    found = subprocess.run(command, cwd=ROOT, env=source, capture_output=True, text=True)
    if found.returncode:
        sys.stdout.write(found.stdout + found.stderr)
    counts = re.findall(r"\d+ (?:passed|failed|errors?|skipped)", found.stdout)
    said = ", ".join(counts) or found.stdout.strip().rpartition("\n")[2] or found.stderr.strip()
    return f"{'ok' if found.returncode == 0 else 'FAILED'}: {said}"


def main() -> int:
    """Every pair that was requested; 0 where all of them pass."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--onnxruntime", nargs="+", default=RUNTIMES, metavar="RELEASE")
    parser.add_argument("--onnx", nargs="+", default=ONNX, metavar="RELEASE")
    parser.add_argument("--folder", type=Path, default=ROOT / ".matrix", help="where the environments are")
    arguments = sys.argv[1:]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    given, rest = parser.parse_args(arguments[:at]), arguments[at + 1 :]
    results: list[str] = []
    for runtime in given.onnxruntime:
        for onnx in given.onnx:
            python = environment(given.folder.resolve(), runtime, onnx)
            results.append(run(python, ["-o", "addopts=", *rest]))
            sys.stdout.write(f"onnxruntime {runtime}, onnx {onnx}: {results[-1]}\n")
            sys.stdout.flush()
    return 0 if all(said.startswith("ok") for said in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
