"""What Octavo stands on: floors below which a weakness is known, and the bill of materials."""

from __future__ import annotations

import importlib.util
import json
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo.reporting.html import page

ROOT = Path(__file__).resolve().parent.parent

tomllib = pytest.importorskip("tomllib", reason="it comes with Python 3.11")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Below these a weakness is published that a file could use: external data, recursion, pickles, decoders.
FLOORS: dict[str, tuple[str, ...]] = {
    "onnx": ("1.22",),
    "protobuf": ("5.29.6", "6.33.5"),
    "numpy": ("1.26",),
    "pillow": ("12.3",),
    "ray": ("2.52",),
    "pyyaml": ("6",),
}
REQUIRED = ("onnx", "protobuf", "numpy", "pyyaml")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def is_sound(version: str, floors: tuple[str, ...]) -> bool:
    """Whether a version is at its branch's floor or above; a branch is the first number."""
    found = _numbers(version)
    own = [_numbers(floor) for floor in floors if _numbers(floor)[0] == found[0]]
    return found >= own[0] if own else found[0] > max(_numbers(floor)[0] for floor in floors)


def _lines(name: str) -> list[str]:
    every = [
        *PROJECT["dependencies"],
        *(line for lines in PROJECT["optional-dependencies"].values() for line in lines),
    ]
    return [line for line in every if re.match(rf"{name}(?![\w-])", line, re.IGNORECASE)]


@pytest.mark.parametrize("name", FLOORS)
def test_what_is_requested_is_no_older_than_its_floor(name: str) -> None:
    lines = _lines(name)
    assert lines
    for line in lines:
        least = re.search(r">=\s*([\d.]+)", line)
        assert least is not None, line
        assert is_sound(least[1], FLOORS[name]), line


def test_branches_of_protobuf_with_a_weakness_are_left_out() -> None:
    """6.30 to 6.33.4 are newer than 5.29.6, and open to what that has closed."""
    (line,) = _lines("protobuf")
    for version in ("6.30.0", "6.31.1", "6.33.4"):
        assert not is_sound(version, FLOORS["protobuf"])
        assert not _allows(line, version), line
    for version in ("5.29.6", "6.33.5", "7.0.0"):
        assert is_sound(version, FLOORS["protobuf"])
        assert _allows(line, version), line


def _allows(line: str, version: str) -> bool:
    packaging = pytest.importorskip("packaging.requirements")
    return bool(packaging.Requirement(line).specifier.contains(version))


@pytest.mark.parametrize("name", FLOORS)
def test_what_is_installed_is_no_older_than_its_floor(name: str) -> None:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        assert name not in REQUIRED
        pytest.skip(f"{name} is not installed")
    assert is_sound(version, FLOORS[name]), version


def test_protobuf_parses_with_its_native_code() -> None:
    """The parser in pure Python has had recursion without an end."""
    from google.protobuf.internal import api_implementation

    assert api_implementation.Type() in ("upb", "cpp")


FORBIDDEN = re.compile(
    r"\b(?:pickle\.loads?|joblib|torch\.load|yaml\.load\(|yaml\.unsafe|eval\(|exec\(|os\.system|shell=True|"
    r"extractall|allow_pickle=True|onnx\.hub|urlopen|urlretrieve|import requests|version_converter|marshal|"
    r"shelve)"
)
# Where frames from this very program, or its caller, are unpacked.
KNOWN = {
    "calibration/engines",
    "isolation/child.py",
    "evaluation/timing/footprint_process.py",
    "evaluation/timing/footprint.py",
}


def test_nothing_in_the_source_runs_or_fetches_what_a_file_says() -> None:
    found = []
    for path in sorted((ROOT / "src" / "octavo").rglob("*.py")):
        place = path.relative_to(ROOT / "src" / "octavo").as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if FORBIDDEN.search(line) and not any(place.startswith(known) for known in KNOWN):
                found.append(f"{place}:{number}: {line.strip()}")
    assert not found


UNBOUNDED = re.compile(r"json\.loads?\(.*read_(?:text|bytes)\(|safe_load\(.*read_(?:text|bytes)\(")
OWN = {
    "evaluation/timing/footprint_process.py",
    "evaluation/timing/footprint.py",
    "evaluation/timing/profiler.py",
}  # what they read they wrote
BOUNDED = {"core/files.py", "evaluation/label_files.py"}  # bounds of their own


def test_json_and_yaml_of_others_are_read_up_to_a_bound() -> None:
    """Most through ``core/files.py``, which refuses pipes and devices, and depth without an end."""
    source = ROOT / "src" / "octavo"
    found = [
        f"{path.relative_to(source)}:{number}"
        for path in sorted(source.rglob("*.py"))
        if path.relative_to(source).as_posix() not in OWN | BOUNDED
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNBOUNDED.search(line) and "read_bytes(path, _MOST" not in line
    ]
    assert not found


def _sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "scripts" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bill_of_materials_is_a_cyclonedx_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    sbom = _sbom()
    made = sbom.bill(["images"])
    assert made == sbom.bill(["images"])
    assert json.loads(json.dumps(made)) == made
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made["serialNumber"])
    assert made["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    parts = {part["name"]: part for part in made["components"]}
    assert set(REQUIRED) | {"onnxruntime", "pillow", "rich"} <= set(parts)
    assert made["metadata"]["component"]["licenses"] == [{"expression": PROJECT["license"]}]
    inside = {name: parts[name]["version"] for name in ("echarts", "zrender")}
    assert inside["echarts"] == page.ECHARTS
    for name, part in parts.items():
        assert part["type"] == "library"
        assert part["version"] == (inside.get(name) or metadata.version(name))
        kind = "npm" if name in inside else "pypi"
        assert part["purl"] == part["bom-ref"] == f"pkg:{kind}/{name}@{part['version']}"
        for licence in part.get("licenses", ()):
            assert len(licence) == 1
            assert licence.keys() <= {"expression", "license"}
    references = {"octavo", *(part["bom-ref"] for part in parts.values())}
    assert len(references) == len(parts) + 1
    assert {entry["ref"] for entry in made["dependencies"]} == references
    for entry in made["dependencies"]:
        assert set(entry["dependsOn"]) <= references
    direct = next(entry for entry in made["dependencies"] if entry["ref"] == "octavo")["dependsOn"]
    assert parts["onnx"]["purl"] in direct


def test_the_bill_leaves_out_what_is_not_needed() -> None:
    names = {part["name"] for part in _sbom().bill()["components"]}
    assert not names & {"pytest", "ruff", "mypy", "pillow", "ray"}
