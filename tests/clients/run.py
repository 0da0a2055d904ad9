"""Run projects that quantize with ``onnxruntime.quantization`` on top of ``octavo.quantization`` instead.

    python tests/clients/run.py
    python tests/clients/run.py optimum olive
    python tests/clients/run.py optimum --stock

Each client is unchanged: ``onnxruntime.quantization`` is aliased to ``octavo.quantization`` in
``sys.modules`` before it is imported. Its virtual environment is under ``--folder``, and is kept for the next
run. ``--stock`` leaves the alias out, to see what the client does without Octavo.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Client:
    """A script in this folder, and what its environment holds beside Octavo."""

    name: str
    script: str
    requirements: tuple[str, ...]


OPTIMUM = (
    "optimum==2.1.*",
    "optimum-onnx==0.1.0",
    "transformers==4.57.6",
    "datasets<4",
    "huggingface-hub<1.0",
    "torch==2.13.0",
)
TXTAI = ("txtai==9.14.0", "transformers==5.23.0", "torch==2.13.0", "onnxscript")
CLIENTS = (
    Client("optimum", "optimum_quantizer.py", OPTIMUM),
    Client("sentence-transformers", "sentence_export.py", (*OPTIMUM, "sentence-transformers==5.1.*")),
    Client("transformers-4", "graph_converter.py", OPTIMUM),
    Client("transformers-5", "transformers_exporter.py", TXTAI),
    Client("txtai", "txtai_export.py", TXTAI),
    Client(
        "olive",
        "olive_passes.py",
        ("olive-ai==0.13.0", "transformers==4.57.6", "huggingface-hub<1.0", "torch==2.13.0"),
    ),
    Client(
        "genai",
        "genai_builder.py",
        ("onnxruntime-genai==0.18.0", "transformers>=5", "torch==2.13.0"),
    ),
    Client("genai-runtime", "genai_runtime.py", ("onnxruntime-genai==0.18.0", "tokenizers")),
    Client("examples", "example_scripts.py", ("pillow",)),
)


def environment(folder: Path, client: Client) -> Path:
    """Return the Python of a client's environment, which is made where it is not there or not the same."""
    first = next(other for other in CLIENTS if other.requirements == client.requirements)
    home = folder / first.name  # those with the same requirements share one
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    done, wanted = home / ".installed", "\n".join(client.requirements)
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        venv.create(home, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *client.requirements, "-e", str(ROOT)], check=True)
        done.write_text(wanted, encoding="utf-8")
    return python


def results(python: Path, client: Client, stock: bool) -> list[dict[str, object]]:
    """Return what the client's script said of each of its checks; that it did not run is a failed one."""
    paths = os.pathsep.join((str(ROOT / "src"), str(SCRIPTS)))
    settings = {**os.environ, "PYTHONPATH": paths, "CLIENT_USES_STOCK": "1" if stock else ""}
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-W", "ignore", str(SCRIPTS / client.script)]
        ran = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
    found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"version"')]
    if ran.returncode:
        sys.stderr.write(ran.stderr[-4000:])
    if ran.returncode and all(one["passed"] for one in found):
        last = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
        found.append({"version": "", "what": "the script", "passed": False, "said": last})
    return found


def table(rows: list[tuple[str, ...]]) -> str:
    """Return rows of text, the first of them the heads, as a table in Markdown."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def main() -> int:
    """Run the clients named, by default all; return 0 where every check passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {client.name: client for client in CLIENTS}
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--folder", type=Path, default=ROOT / ".clients", help="where the environments are")
    parser.add_argument("--stock", action="store_true", help="without Octavo, for comparison")
    given = parser.parse_args()
    rows = [("client", "version", "what was run", "passed", "result")]
    passed = True
    for name in given.clients or known:
        if name not in known:
            parser.error(f"{name!r} is not a client; choose of {', '.join(known)}.")
        client = known[name]
        try:
            python = environment(given.folder.resolve(), client)
        except subprocess.CalledProcessError:
            found = [{"version": "", "what": "installation", "passed": False, "said": "pip failed"}]
        else:
            found = results(python, client, given.stock)
        for one in found:
            passed = passed and bool(one["passed"])
            cells = (one["version"], one["what"], "yes" if one["passed"] else "NO", one["said"])
            rows.append((name, *(str(cell).replace("|", "/") for cell in cells)))
    print(table(rows))
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
