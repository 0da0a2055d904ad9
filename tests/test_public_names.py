"""The public surface is frozen: a change of it is a decision, written down here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import octavo

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = ("octavo", "octavo.quantization", "octavo.evaluation")  # what documentation may import from

PUBLIC = [
    "Auto", "Bench", "Comparison", "DataError", "Diagnosis", "Distribution", "DynamicScheme",
    "Entropy", "Evaluation", "FP8", "FolderResult", "IsolationError", "Lint", "MSE", "MinMax", "ModelError",
    "OctavoError", "OutputError", "Override", "PerBlock", "PerChannel", "PerTensor", "Percentile",
    "Placement", "Plan", "PrepareOptions", "Prepared", "Proposal", "QParams", "Recipe", "RecipeError",
    "Requirements",
    "Result", "Scheme", "Stats", "Style", "TableError", "TaskCheck", "Tuned", "W4", "W4A16",
    "W8", "W8A16", "W8A8",
    "__version__", "arrays", "bench", "calibrate", "compare", "convert_qat", "doctor", "emit", "evaluate",
    "images", "inspect", "isolated", "lint", "load_stats", "metric", "plan", "prepare", "preprocessing",
    "preset", "propose", "quantize", "quantize_folder", "random_data", "ready", "report", "save_stats",
    "text", "tune",
]  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert sorted(octavo.__all__) == PUBLIC


def test_every_public_name_has_a_stability_mark() -> None:
    assert set(octavo.__all__) >= octavo.PROVISIONAL
    assert octavo.stability("quantize") == "stable"
    assert octavo.stability("tune") == "provisional"
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in octavo.__all__:
        assert name == "__version__" or f"| `{name}` | {octavo.stability(name)} |" in page, "run 'make docs'"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documentation_uses_public_names_only(page: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for node in (node for block in blocks for node in ast.walk(ast.parse(block))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "octavo":
            assert (node.module or "").startswith(PACKAGES[1:]) or node.module == PACKAGES[0], node.module
            if node.module == PACKAGES[0]:
                assert all(alias.name in octavo.__all__ for alias in node.names)
        if isinstance(node, ast.Import):
            known = [alias.name for alias in node.names if alias.name.split(".")[0] == "octavo"]
            assert all(name in PACKAGES for name in known), known
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "octavo":
            assert node.attr in octavo.__all__ or node.attr == "quantization", node.attr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documentation_speaks_of_public_names_only(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`octavo\.(\w+)", text)) - {"json", "onnx", "quantization", "evaluation"}
    assert named <= set(octavo.__all__), named - set(octavo.__all__)


def test_every_public_name_exists() -> None:
    assert all(hasattr(octavo, name) for name in octavo.__all__)
    assert dir(octavo) == sorted(octavo.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(octavo, "quantise")


def test_importing_octavo_loads_neither_runtime_nor_numpy() -> None:
    code = "import sys, octavo; print(sorted({'numpy', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_peer_is_never_imported() -> None:
    code = (
        "import sys, octavo\n"
        "[getattr(octavo, n) for n in octavo.__all__]\n"
        "import onnxruntime\n"
        "print(any(m.startswith('onnxruntime.quantization') for m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
