"""Raising a model's default opset, version by version, in every scope.

Nodes are rewritten in place by the table in :mod:`.adapters`: names, metadata and the nodes of other domains
stay as they are, and no weight is touched. Versions before 7 had another broadcasting; they are not raised.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.model.graph.scopes import remove_unused
from octavo.model.prepare.adapters import ADAPTERS
from octavo.model.runtime.session import kernels, runtime_opset_limit

OLDEST = 7  # the first opset with today's broadcasting

_NO_END = 2**31 - 1  # the end of a kernel's versions where it has none
_OF_UPSAMPLE = {"mode": ir.AttributeType.STRING, "scales": ir.AttributeType.FLOATS}
_NO_UPSAMPLE = 10  # the first opset without Upsample

_CHANGED = frozenset(op for op, _ in ADAPTERS)


def raise_opset(model: ir.Model, to: int) -> int:
    """Convert a model to the default opset ``to`` if it is older; returns how many nodes were rewritten."""
    now = query.opset(model)
    if now >= to:
        return 0
    _check_versions(now, to)
    _check_kernels(model, now, to)
    edit = Editor(model)
    nodes = [node for node in query.nodes(model) if not node.domain and node.op_type in _CHANGED]
    for node in nodes:
        if node.op_type == "Upsample" and now >= _NO_UPSAMPLE:
            upsample_as_resize(edit, node, now)
    count = 0
    for version in range(now + 1, to + 1):
        for node in nodes:
            adapter = ADAPTERS.get((node.op_type, version))
            if adapter is not None:
                adapter(edit, node)
                count += 1
    _refuse_deprecated(model, to)
    model.opset_imports[""] = to
    remove_unused(model)
    return count


def upsample_as_resize(edit: Editor, node: ir.Node, opset: int) -> None:
    """Write an ``Upsample`` of an opset that has none as ``Resize``; its last definition is what is meant."""
    for name, attribute in list(node.attributes.items()):
        if attribute.type != _OF_UPSAMPLE.get(name):  # no schema has said what it is
            del node.attributes[name]
    if "scales" in node.attributes:
        ADAPTERS["Upsample", 9](edit, node)
    for version in range(_NO_UPSAMPLE, opset + 1):
        adapter = ADAPTERS.get((node.op_type, version))
        if adapter is not None:
            adapter(edit, node)


def _check_versions(now: int, to: int) -> None:
    limit = min(runtime_opset_limit(), onnx.defs.onnx_opset_version())
    if to > limit:
        raise ModelError(
            f"Opset {to} is newer than the installed onnxruntime and onnx know; {limit} is the newest."
        )
    if now < OLDEST:
        raise ModelError(
            f"The model has opset {now}, and conversion starts at {OLDEST}; "
            f"export the model again with opset {to}."
        )


def oldest_with_bytes(op_type: str, opset: int) -> int:
    """Return the oldest opset, not before ``opset``, since which an operator reads uint8; else ``opset``."""
    for version in range(opset, onnx.defs.onnx_opset_version() + 1):
        schema = onnx.defs.get_schema(op_type, version) if onnx.defs.has(op_type, version) else None
        if schema is not None and schema.inputs and "tensor(uint8)" in schema.inputs[0].types:
            return version
    return opset


def _since(op_type: str, opset: int) -> int | None:
    """Return the version of an operator in an opset; None where it is gone, or made of other operators."""
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None
    made_of_others = any(getattr(schema, kind) for kind in ("has_function", "has_context_dependent_function"))
    return None if schema.deprecated or made_of_others else int(schema.since_version)


def _has_kernel(op_type: str, opset: int) -> bool:
    """Whether the runtime computes an operator of this opset; a kernel without an end serves one version."""
    since = _since(op_type, opset)
    return since is None or any(
        kernel.since == since or (kernel.since < since <= kernel.until and kernel.until < _NO_END)
        for kernel in kernels().get(("", op_type), ())
    )


def _check_kernels(model: ir.Model, now: int, to: int) -> None:
    """Refuse an opset whose version of an operator the runtime does not have, if it has the present one."""
    for op_type in sorted({node.op_type for node in query.nodes(model) if not node.domain}):
        if _has_kernel(op_type, to) or not _has_kernel(op_type, now):
            continue
        best = max(opset for opset in range(now, to) if _has_kernel(op_type, opset))
        raise ModelError(
            f"The installed onnxruntime has no {op_type} of opset {to}; "
            f"raise the model to opset {best} at most."
        )


def _refuse_deprecated(model: ir.Model, to: int) -> None:
    for node in query.nodes(model):
        if node.domain or not onnx.defs.has(node.op_type):
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, to)
        except onnx.defs.SchemaError:
            continue
        if schema.deprecated:
            raise ModelError(
                f"The {node.op_type} node {node.name!r} does not exist any more in opset {to}; "
                f"export the model again with opset {to} or newer."
            )
