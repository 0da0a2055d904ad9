"""Preparing a model for quantization: known shapes, no dead weight, one form for one thing.

The passes, in order; each is one small file and does nothing on a model it has already seen::

    normalize      the canonical form (octavo.model.graph.normalize)
    opset          a newer default opset, on request
    runtime        ONNX Runtime's own basic optimization, on request
    shapes         ONNX shape inference
    no-ops         Identity, Dropout in inference, Cast to the same type
    stored         weights stored in integers that run as float, float again
    invariants     what a Loop, Scan or If hands on unchanged, read from outside
    constants      what depends on constants alone, computed
    branches       the branch of an ``If`` that is always taken, in its place
    batch norm     folded into the layer before
    symbolic       symbolic shape inference, where ranks are still unknown
    fusions        Gelu, LayerNormalization and HardSwish as one operator or one marked unit
    attention      heads that several queries share, read without copies
    pooling        a mean over all spatial axes as GlobalAveragePool
    numbers        what a convolution's input is multiplied with, and what is added, in the convolution
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph import meta, query
from octavo.model.graph.dequantized import restore
from octavo.model.graph.normalize import normalize
from octavo.model.graph.scopes import remove_unused
from octavo.model.prepare import batch_norm, constant_folding, control_flow, fusions, rewrites, shapes
from octavo.model.prepare.opset import raise_opset
from octavo.model.prepare.prepare_report import Change, PrepareReport, describe_kind
from octavo.model.prepare.shared_heads import share_heads
from octavo.model.runtime import session

__all__ = ["Change", "PrepareOptions", "PrepareReport", "prepare", "raise_opset"]


@dataclass(frozen=True)
class PrepareOptions:
    """What to do; ``symbolic_shapes=None`` means where it is needed and sympy is installed."""

    symbolic_shapes: bool | None = None
    runtime_optimization: bool = False
    onnx_shapes: bool = True
    fold_batch_norm: bool = True
    fold_constants: bool = True
    fuse: bool = True
    opset: int | None = None
    remove_no_ops: bool = True
    describe: bool = True  # a note on what kind of model it is, for whoever reads the report


_INTO_CONVOLUTIONS = "{n} constant additions and products folded into a convolution"
_ADDITIVE = frozenset({"normalize", "shapes", "symbolic shapes"})  # what leaves nothing unused behind


class _Log:
    """Collects what the passes report; what one of them does in several goes is added up."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self.notes: list[str] = []

    def put(self, name: str, count: int, text: str, notes: Iterable[str] = ()) -> int:
        """Record a pass; ``{n}`` in the text is the count."""
        if count:
            self._counts[name, text] = self._counts.get((name, text), 0) + count
        self.notes.extend(notes)
        return count

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return what was done."""
        return tuple(Change(name, n, text.format(n=n)) for (name, text), n in self._counts.items())


def prepare(model: ir.Model, options: PrepareOptions | None = None) -> PrepareReport:
    """Prepare a model in place; returns what was done."""
    wanted = options if options is not None else PrepareOptions()
    log = _Log()
    done = normalize(model)
    log.put("normalize", len(done), ", ".join(done).replace("{", "(").replace("}", ")"))
    kind = describe_kind(model) if wanted.describe else None
    if kind is not None:
        log.notes.append(f"the model: {kind}")
    if wanted.opset is not None and query.opset(model) < wanted.opset:
        _raise_opset(model, wanted.opset, log)
    if wanted.runtime_optimization:
        _optimize(model, log)
    _infer(model, wanted, log)
    if wanted.remove_no_ops:
        log.put("no-ops", constant_folding.remove_no_ops(model), "{n} nodes without effect removed")
    if wanted.fold_constants:
        log.put("stored", restore(model), "{n} weights stored in integers are float again")
        _fold(model, wanted, log)
    rewrites.check_resizes(model)
    if wanted.fold_batch_norm:
        folded, biases = batch_norm.fold(model)
        log.put("batch norm", folded, "{n} batch normalizations folded into the layer before")
        log.put("bias", biases, _INTO_CONVOLUTIONS)
    if wanted.symbolic_shapes or (
        wanted.symbolic_shapes is None and shapes.lacks_ranks(model) and shapes.sympy_is_installed()
    ):
        count, notes = shapes.infer_symbolically(model)
        log.put("symbolic shapes", count, "{n} shapes or types inferred", notes)
    if wanted.fuse:
        for name, count in fusions.fuse(model).items():
            log.put("fusions", count, f"{{n}} × {name}")
        log.put("attention", share_heads(model), "{n} products of attention read shared heads, not copies")
        log.put("pooling", rewrites.pool_means(model), "{n} spatial means written as GlobalAveragePool")
    if wanted.fold_batch_norm:
        log.put("bias", batch_norm.fold_numbers_before(model), _INTO_CONVOLUTIONS)
    if any(change.pass_name not in _ADDITIVE for change in log.changes):
        remove_unused(model)
    return PrepareReport(log.changes, tuple(dict.fromkeys(log.notes)))


def _raise_opset(model: ir.Model, to: int, log: _Log) -> None:
    """Some conversions depend on types and ranks, so these are inferred first."""
    before = query.opset(model)
    shapes.infer(model)
    count = raise_opset(model, to)
    log.put("opset", max(count, 1), f"opset {before} raised to {to}, {count} nodes rewritten")


def _fold(model: ir.Model, wanted: PrepareOptions, log: _Log) -> None:
    """Compute what is constant, and take the branches that it decides, which may make more of it constant."""
    budget, more = constant_folding.budget_of(model), True
    while more:
        hoisted = control_flow.hoist_invariants(model)
        log.put("invariants", hoisted, "{n} values that loops and branches never change read from outside")
        folded = constant_folding.fold(model, budget)
        budget = folded.budget
        settled = control_flow.settle_branches(model)
        log.put("constants", folded.nodes, "{n} constant nodes computed")
        log.put("branches", settled, "{n} branches that are always taken inlined")
        if settled and wanted.remove_no_ops:
            constant_folding.remove_no_ops(model)
        if settled or folded.nodes:
            remove_unused(model)
            _infer(model, wanted, log)
        more = settled > 0 or (folded.nodes > 0 and control_flow.has_branches(model))
    log.notes.extend(folded.notes)


def _infer(model: ir.Model, wanted: PrepareOptions, log: _Log) -> None:
    if wanted.onnx_shapes:
        count, notes = shapes.infer(model)
        log.put("shapes", count, "{n} shapes or types inferred", notes)


def _optimize(model: ir.Model, log: _Log) -> None:
    """Let the runtime rewrite the graph by its rules that keep it standard ONNX."""
    before = len(model.graph)
    try:
        better = session.optimized(model, "basic")
    except ModelError as error:
        log.notes.append(f"ONNX Runtime's optimization was left out: {error}")
        return
    used = {node.domain for node in query.nodes(better)} | {""}
    for domain in set(better.opset_imports) - used:
        del better.opset_imports[domain]
    normalize(better)
    model.graph = better.graph
    meta.annotate(model, one_graph=meta.of(better).one_graph)
    log.put("runtime", 1, f"{before} nodes became {len(better.graph)} by ONNX Runtime's basic optimization")
