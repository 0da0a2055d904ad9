"""The public surface is frozen: a change of it is a decision, written down here."""

from __future__ import annotations

import subprocess
import sys

import octavo

PUBLIC = [
    "Auto", "Bench", "Comparison", "DataError", "Demands", "Diagnosis", "Distribution", "DynamicScheme",
    "Entropy", "Evaluation", "FP8", "IsolationError", "Lint", "MSE", "MinMax", "ModelError", "OctavoError",
    "OutputError", "Override", "PerBlock", "PerChannel", "PerTensor", "Percentile", "Placement", "Plan",
    "PrepareOptions", "Prepared", "QParams", "Recipe", "RecipeError", "Result", "Scheme", "Stats",
    "Style", "TableError", "Tuned", "W4A16", "W8", "W8A16", "W8A8", "__version__", "bench", "calibrate",
    "compare", "convert_qat", "doctor", "emit", "evaluate", "images", "inspect", "isolated", "lint",
    "load_stats", "metric", "plan", "prepare", "preprocessing", "preset", "quantize", "random_data", "ready",
    "report", "save_stats", "text", "tune",
]  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert sorted(octavo.__all__) == PUBLIC


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
