"""How a model is quantized, as a table."""

from __future__ import annotations

from octavo.reporting.inspection import Inspection
from octavo.reporting.text import columns, size, tally


def inspection_line(inspection: Inspection) -> str:
    """Return how a model is quantized on one line."""
    done = tally(inspection.quantized_ops)
    kind = f"{done} quantized ({inspection.style})" if done else "float, nothing quantized"
    return f"{kind}, weights {size(inspection.bytes)}, opset {inspection.opset}"


def inspection_table(inspection: Inspection) -> str:
    """Return types, granularity, counts and sizes by part."""
    rows = [
        ["format", inspection.style],
        ["opset", f"{inspection.opset} (IR version {inspection.ir_version})"],
        ["quantized", tally(inspection.quantized_ops) or "nothing"],
        ["float layers", tally(inspection.float_ops) or "none"],
        ["weights", tally(inspection.weights) or _float_types(inspection)],
        *([["compressed", f"{tally(inspection.stored)}, dequantized at load"]] if inspection.stored else []),
        ["activations", tally(inspection.activations) or "float"],
        ["all nodes", tally(inspection.op_types)],
        ["size of weights", size(inspection.bytes)],
    ]
    blocks = [columns(rows)]
    total = inspection.bytes
    parts = [
        [part.name, part.count, size(part.bytes), f"{100 * part.bytes / total:.1f} %" if total else ""]
        for part in sorted(inspection.parts, key=lambda part: -part.bytes)
    ]
    if parts:
        blocks.append(columns(parts, ["part", "tensors", "size", "share"]))
    return "\n\n".join(blocks)


def _float_types(inspection: Inspection) -> str:
    """The float types of weights, the one that holds most first: ``float16`` alone in a converted model."""
    floats = [part for part in inspection.parts if "float" in part.name and part.bytes]
    return ", ".join(part.name for part in sorted(floats, key=lambda part: -part.bytes)) or "float"
