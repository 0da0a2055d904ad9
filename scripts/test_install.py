"""Install the built wheel into empty environments and test it there: each Python, lowest and newest needs.

    python scripts/test_install.py                                  # every Python that is found here
    python scripts/test_install.py --python 3.11 --needs newest
    python scripts/test_install.py -- -k verbs                      # arguments for pytest

``make dist`` builds the wheel. An interpreter is ``pythonX.Y`` on the path, of pyenv, or of uv where that is
installed; one that is not found is listed as such. *Lowest* is the lowest release of each dependency that
``pyproject.toml`` allows and that has a wheel for that Python. The tests run from a copy outside of the
checkout, so that nothing but the installed package is imported.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
FIRST = {"3.13": {"numpy": "2.1"}}  # the first release with a wheel, where that is above the lowest
TESTS = ("tests/test_api.py", "tests/test_pipeline.py", "tests/cli/test_verbs.py", "tests/planning",
         "tests/calibration/methods")  # fmt: skip
TOOLS = ("pytest>=8.3", "hypothesis>=6.100", "psutil>=6", "sympy>=1.12", "pillow>=12.3", "tokenizers>=0.20")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def interpreter(version: str) -> str | None:
    """The path of an interpreter of this version."""
    places = sorted(Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob(f"versions/{version}.*"))
    names = [str(place / "bin" / "python") for place in places] + [f"python{version}"]
    if (uv := shutil.which("uv")) is not None:
        found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, check=False)
        names += [found.stdout.strip()] if found.returncode == 0 else []
    for name in filter(None, names):
        try:
            said = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if said.returncode == 0 and said.stdout.startswith(f"Python {version}."):
            return name
    return None


def lowest(version: str) -> list[str]:
    """The lowest releases that the project allows, as pins: ``name==X.Y.*`` for a lower bound of X.Y."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text[text.index("\ndependencies = [") : text.index("\n]", text.index("\ndependencies = ["))]
    pins = []
    for name, bound in re.findall(r'"([A-Za-z_-]+)>=([\d.]+)', block):
        bound = FIRST.get(version, {}).get(name, bound)
        pins.append(f"{name}=={bound}" if bound.count(".") > 1 else f"{name}=={bound}.*")
    return pins


def install(version: str, python: str, home: Path, wheel: Path, needs: str) -> str:
    """Make an environment with the wheel; returns the line that pip ends with where it fails."""
    subprocess.run([python, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pins = lowest(version) if needs == "lowest" else []
    done = subprocess.run([*pip, *pins, *TOOLS, str(wheel)], capture_output=True, text=True, check=False)
    lines = (done.stderr or done.stdout).strip().split("\n")
    errors = [line for line in lines if line.startswith("ERROR")]
    return "" if done.returncode == 0 else (errors or lines)[-1]


def run(python: str, home: Path, arguments: list[str]) -> tuple[bool, str]:
    """Test the installed package from a copy of the tests: whether all pass, and what pytest counts."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tests", "examples", "docs", "README.md", "pyproject.toml"):
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, Path(folder) / name)
        command = [str(home / "bin" / "python"), "-P" if python >= "3.11" else "-B", "-m", "pytest"]
        found = subprocess.run(
            [*command, "-p", "no:cacheprovider", *TESTS, *arguments],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    lines = [line for line in found.stdout.strip().split("\n") if line]
    if found.returncode:
        sys.stdout.write("\n".join(lines[-40:]) + "\n")
    counts = re.findall(r"\d+ (?:passed|failed|errors?|skipped)", found.stdout)
    return found.returncode == 0, ", ".join(counts) or (lines[-1] if lines else found.stderr[-200:])


def versions(home: Path) -> str:
    """The releases that count, as installed."""
    names = ("numpy", "onnx", "onnx-ir", "onnxruntime", "protobuf", "ml_dtypes")
    code = f"from importlib.metadata import version as v; print(', '.join(n + ' ' + v(n) for n in {names}))"
    found = subprocess.run([home / "bin" / "python", "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def main() -> int:
    """Every environment that was requested, and a table; 0 where none fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="X.Y")
    parser.add_argument("--needs", nargs="+", default=("newest", "lowest"), choices=("newest", "lowest"))
    parser.add_argument("--wheel", type=Path, help="(default: the one in dist/)")
    arguments = sys.argv[1:]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, rest = parser.parse_args(arguments[:at]), arguments[at + 1 :]
    wheel = options.wheel or next(iter(sorted((ROOT / "dist").glob("*.whl"))), None)
    if wheel is None:
        say("there is no wheel in dist/; run 'make dist' first")
        return 2
    rows, failed = [], False
    for version in options.python:
        python = interpreter(version)
        for needs in options.needs:
            if python is None:
                rows.append(f"Python {version:5} {needs:7} not run: there is no such interpreter here")
                continue
            with tempfile.TemporaryDirectory() as folder:
                home = Path(folder) / "env"
                problem = install(version, python, home, wheel.resolve(), needs)
                passed, said = (False, problem) if problem else run(version, home, rest)
                failed = failed or not passed
                state = "passed" if passed else "FAILED"
                rows.append(f"Python {version:5} {needs:7} {state}: {said} ({versions(home)})")
            say(rows[-1])
    say("\n" + "\n".join(rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
