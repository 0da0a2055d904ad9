"""What a page is made of: results as objects or as JSON, and quantized models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from octavo.core import plan
from octavo.core.files import read_json, unreadable
from octavo.errors import RecipeError, TableError
from octavo.reporting.html import details, from_model

KINDS = ("quantization", "model", "comparison", "evaluation", "bench")
Source: TypeAlias = Any  # a result with to_dict(), plain data, or a path

LETTERS = "ABCDEF"  # of the models that a page shows side by side: a letter and a colour for each
_MAX_JSON_BYTES = 1 << 30  # of a result; a larger file is refused before it is read
_MALFORMED = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError)


@dataclass
class Side:
    """What is known of one quantized model: at most one result of each kind."""

    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    label: str | None = None

    @property
    def name(self) -> str | None:
        """Return the file name of the quantized model, where a part knows it."""
        return next((name for part in self.parts.values() if (name := model_name(part))), None)

    def part(self, kind: str) -> Mapping[str, Any]:
        """Return the result of a kind; empty where there is none."""
        return self.parts.get(kind) or {}

    @property
    def made(self) -> Mapping[str, Any]:
        """Return the result of quantizing, or what the file of the model tells; empty without both."""
        return self.part("quantization") or self.part("model")

    @property
    def details(self) -> Mapping[str, Any]:
        """Return the graph, the tensors and the manifest; empty where they are not known."""
        return self.made.get("details") or {}


def kind_of(data: Mapping[str, Any]) -> str:
    """Return the kind of a result in plain data."""
    if data.get("kind") in KINDS:
        return str(data["kind"])
    if "plan" in data and "params" in data:
        return "quantization"
    if "culprits" in data and "tensors" in data:
        return "comparison"
    raise TableError("it is not a result of octavo; write one with 'octavo quantize … --report result.json'")


def model_name(data: Mapping[str, Any]) -> str | None:
    """Return the file name of the quantized model that a result is about."""
    match kind_of(data):
        case "quantization" | "model":
            name = (data.get("details") or {}).get("name")
        case "comparison":
            name = data.get("quantized")
        case "evaluation":
            name = data.get("model")
        case _:
            name = data["models"][-1]["name"] if data.get("models") else None
    return Path(str(name)).name if name and str(name).lower().endswith(".onnx") else None


def parts_of(source: Source) -> list[dict[str, Any]]:
    """Return the results that a source holds, as plain data."""
    if isinstance(source, Mapping):
        return _single(dict(source))
    if isinstance(source, str | os.PathLike):
        return _read(Path(source))
    if hasattr(source, "plan") and hasattr(source, "params") and hasattr(source, "model"):
        return [details.full(source)]
    if hasattr(source, "to_dict"):
        return parts_of(source.to_dict())
    raise RecipeError(
        f"A report is made of results, their JSON, or paths, not of {type(source).__name__}; give what"
        " quantize, compare, evaluate or bench returned."
    )


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix.lower() == ".onnx":
        return [from_model.facts(path)]
    try:
        data = read_json(path, _MAX_JSON_BYTES)
    except OSError as error:
        raise TableError(unreadable("", path, error)) from error
    except UnicodeDecodeError as error:
        raise TableError(f"{path} is not text; give a .json or .onnx file.") from error
    except ValueError as error:
        raise TableError(f"{path} is not JSON: {error}.") from error
    try:
        return _single(data)
    except (TableError, AttributeError, KeyError, TypeError) as error:
        raise TableError(f"{path} can't be shown: {error}.") from error


def _single(data: Any) -> list[dict[str, Any]]:
    if not isinstance(data, dict):
        raise TableError("it is not a JSON object")
    return bench_pairs(data) if kind_of(data) == "bench" else [_current(data)]


def bench_pairs(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a measurement of several models as one of the first and each of the others."""
    first, *others = data["models"]
    if len(others) < 2:
        return [data]
    return [
        {**data, "models": [first, other], "ratios": [ratio], "ratio": ratio}
        for other, ratio in zip(others, data["ratios"], strict=True)
    ]


def _current(data: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the plan under its present keys; earlier versions wrote others."""
    return data | {"plan": plan.current_names(data["plan"])} if data.get("plan") else data


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Raise a sentence where a field of a result, which may come from a file, is not as Octavo writes it."""
    try:
        yield
    except _MALFORMED as error:
        raise TableError(
            "The results can't be shown: a field is not as Octavo writes it "
            f"({type(error).__name__}: {error}); make them again."
        ) from error


def sides(sources: list[Source]) -> list[Side]:
    """Group results by quantized model; a second result of a kind begins a second side."""
    found: list[Side] = []
    for source in sources:
        with readable():
            for part in parts_of(source):
                _assign(found, part)
    if len(found) > len(LETTERS):
        names = ", ".join(side.name or "unnamed" for side in found)
        raise RecipeError(
            f"A page shows at most {len(LETTERS)} models side by side, but these are {len(found)}: {names}."
        )
    if not found:
        raise RecipeError("A report needs at least one result.")
    return found


def _assign(found: list[Side], part: dict[str, Any]) -> None:
    kind, name = kind_of(part), model_name(part)
    free = [side for side in found if kind not in side.parts]
    same = [side for side in free if name is not None and side.name == name]
    open_ones = [side for side in free if name is None or side.name is None]
    if same or open_ones:
        (same or open_ones)[-1].parts[kind] = part
    else:
        found.append(Side({kind: part}))
