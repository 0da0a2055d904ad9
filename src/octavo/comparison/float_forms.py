"""The form of the float model that a quantized one was made from: as it is, prepared, or optimized."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from octavo.comparison.match import Matching, match
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import PrepareOptions, prepare
from octavo.model.prepare.shapes import infer
from octavo.model.prepare.widen import widen

_ENOUGH_MATCHED = 0.999  # of the quantized units matched: no other form is tried


def prepared(source: io.ModelSource, opset: int | None = None, *, optimize: bool = False) -> ir.Model:
    """Return the float model as ``quantize`` sees it."""
    model = io.load(source)
    wanted = max(opset, query.opset(model)) if opset is not None else None
    prepare(model, PrepareOptions(opset=wanted, runtime_optimization=optimize))
    widen(model)
    return model


def plain(source: io.ModelSource) -> ir.Model:
    """Return a model in its normal form, with nothing folded, and with the types of its tensors."""
    model = io.load(source)
    normalize(model)
    if any(query.element_type(value) is None for node in query.nodes(model) for value in node.outputs):
        infer(model)
    return model


def best_match(source: io.ModelSource, quantized: ir.Model) -> tuple[Matching, str]:
    """Return the matching with that form of the float model that fits best, and the name of the form."""
    opset = query.opset(quantized)
    choices: dict[str, Callable[[], ir.Model]] = {
        "prepared": lambda: prepared(source, opset),
        "as it is": lambda: plain(source),
        "optimized": lambda: prepared(source, opset, optimize=True),
    }
    best: tuple[Matching, str] | None = None
    for name, model in _made(choices):
        found = match(model, quantized)
        if best is None or found.share > best[0].share:
            best = found, name
        if found.share >= _ENOUGH_MATCHED:
            break
    if best is None:
        raise ModelError("The float model can't be brought into a form to compare with; is it a valid model?")
    return best


def _made(choices: dict[str, Callable[[], ir.Model]]) -> Iterator[tuple[str, ir.Model]]:
    for name, make in choices.items():
        try:
            model = make()
        except ModelError:
            if name == "as it is":
                raise
            continue
        yield name, model
