"""The steps of weight-only quantization."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms import Algorithm, BlockScheme, Default, Gptq, Rtn
from octavo.calibration.data import feeds
from octavo.calibration.products import products
from octavo.emission import bnb4, gather_blocks, nbits
from octavo.emission.block_qdq import least_opset, misread, write_dequantized
from octavo.emission.block_weights import DEQUANTIZED, PLAIN, BlockNames, BlockWeights
from octavo.errors import DataError
from octavo.model import io, query
from octavo.model.edit import Editor
from octavo.model.normalize import normalize
from octavo.model.prepare import raise_opset, shapes
from octavo.model.samples import specs_of
from octavo.model.scopes import remove_unused
from octavo.weight_only.choose import Chosen, choose, names, refused, scheme_of
from octavo.weight_only.request import Outcome, Selection, WeightOnly

Array = npt.NDArray[Any]


def quantize(source: io.ModelSource, want: WeightOnly, data: Any = None) -> Outcome:
    """Quantize the weights of a model."""
    model = io.load(source)
    known = names(model)
    normalize(model)
    chosen, skipped = choose(model, want.selection, known)
    chosen = [c for c in chosen if not refused(c, want, skipped)]
    _raise_opset(model, want, chosen)
    run = _Run(model, want, skipped)
    for part, sums in _inputs(model, want, chosen, data, skipped):
        run.write(part, sums)
    remove_unused(model)
    return Outcome(model, tuple(run.done), skipped)


def quantize_bnb4(source: io.ModelSource, kind: int, size: int, selection: Selection) -> Outcome:
    """Write each product with a constant matrix as MatMulBnb4: kind 0 is FP4, 1 is NF4."""
    model = io.load(source)
    known = names(model)
    normalize(model)
    chosen, skipped = choose(model, selection, known)
    edit = Editor(model)
    parts: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    for item in chosen:
        if item.weight not in parts:
            parts[item.weight] = bnb4.stored(edit, item.weight.name or "", item.source, kind, size)
        bnb4.write_product(edit, item.node, parts[item.weight], (item.dims[0], item.dims[1]), kind, size)
    remove_unused(model)
    return Outcome(model, tuple(item.name for item in chosen), skipped)


def _raise_opset(model: ir.Model, want: WeightOnly, chosen: list[Chosen]) -> None:
    """Standard blocks, and the 4-bit types, need a newer opset than the model may have."""
    needed = 0
    for item in chosen:
        scheme = scheme_of(item, want) or want.scheme
        if item.node.op_type == "Gather":
            needed = max(needed, 21 if scheme.bits == 4 else 0)
        elif want.qdq:
            needed = max(needed, least_opset(scheme.bits))
    if needed > query.opset(model):
        shapes.infer(model)
        raise_opset(model, needed)


def _inputs(
    model: ir.Model, want: WeightOnly, chosen: list[Chosen], data: Any, skipped: dict[str, str]
) -> Iterator[tuple[list[Chosen], Mapping[str, Array]]]:
    """The nodes in portions, with the products of their inputs where the algorithm wants them."""
    if not want.algorithm.wants_data:
        yield chosen, {}
        return
    if data is None:
        raise DataError("GPTQ needs calibration data: pass a reader with get_next(), or a list of samples.")
    by_input: dict[str, list[Chosen]] = {}
    others: list[Chosen] = []
    for item in chosen:
        value = item.node.inputs[0]
        main = item.node.op_type == "MatMul" and value is not None and value.graph is model.graph
        by_input.setdefault(value.name or "", []).append(item) if main and value else others.append(item)
    samples = list(itertools.islice(feeds(data, specs_of(model)), want.samples))
    widths = {name: items[0].dims[0] for name, items in by_input.items()}
    frozen = io.load(model)
    for sums in products(frozen, widths, samples, providers=want.providers):
        yield [item for name in sums for item in by_input[name]], sums
    yield others, {}


class _Run:
    """Writes nodes; a weight that several read is quantized and stored once."""

    def __init__(self, model: ir.Model, want: WeightOnly, skipped: dict[str, str]) -> None:
        self.edit, self.want, self.skipped = Editor(model), want, skipped
        self.done: list[str] = []
        self._weights: dict[tuple[Any, ...], BlockWeights] = {}

    def write(self, items: list[Chosen], sums: Mapping[str, Array]) -> None:
        """Write some nodes."""
        for item in items:
            scheme = scheme_of(item, self.want)
            if scheme is None:
                continue
            if item.node.op_type == "Gather":
                self._lookup(item, scheme)
            else:
                value = item.node.inputs[0]
                self._product(item, scheme, sums.get(value.name or "") if value is not None else None)
            self.done.append(item.name)

    def _product(self, item: Chosen, scheme: BlockScheme, sums: Array | None) -> None:
        want = self.want
        standard = want.qdq and not misread(item.node, scheme.bits, item.dims[1], inner=item.inner)
        if standard and want.per_channel:
            scheme = replace(scheme, size=item.dims[0])
        whole = scheme.whole_zero or standard or scheme.bits == 8
        scheme = replace(scheme, whole_zero=whole)
        called = DEQUANTIZED if standard else want.called
        weights = self._weight(item, scheme, called, lambda a: a.T, sums)
        if standard:
            write_dequantized(self.edit, item.node, weights, turned=want.per_channel and scheme.symmetric)
        else:
            nbits.write_product(self.edit, item.node, weights, accuracy_level=want.accuracy_level)
        weights.let_go()

    def _lookup(self, item: Chosen, scheme: BlockScheme) -> None:
        dims = item.dims
        axis = self.want.gather_axis % len(dims)
        scheme = replace(scheme, whole_zero=True)

        def rows(table: Array) -> Array:
            return np.moveaxis(table, axis, -1).reshape(-1, dims[axis])

        weights = self._weight(item, scheme, PLAIN, rows, None, (axis,))
        gather_blocks.write_lookup(self.edit, item.node, weights, dims, axis)
        weights.let_go()

    def _weight(
        self,
        item: Chosen,
        scheme: BlockScheme,
        called: BlockNames,
        rows: Callable[[Array], Array],
        sums: Array | None,
        more: tuple[int, ...] = (),
    ) -> BlockWeights:
        algorithm = self._algorithm(item, sums)
        key = (item.weight, scheme, called, algorithm, more)
        if key not in self._weights:
            source, dims = item.source, item.dims
            shape = (dims[1], dims[0]) if not more else (source.size // dims[more[0]], dims[more[0]])
            self._weights[key] = BlockWeights(
                item.weight.name or "",
                shape,
                scheme,
                lambda: algorithm.blocks(rows(np.asarray(source.numpy())), scheme, sums),
                isinstance(algorithm, Default | Rtn),
                called,
            )
        return self._weights[key]

    def _algorithm(self, item: Chosen, sums: Array | None) -> Algorithm:
        """The algorithm for a node: tables, and layers whose inputs can't be seen, are rounded to nearest."""
        chosen = self.want.algorithm
        if item.node.op_type == "Gather":
            return Default()
        if isinstance(chosen, Gptq) and sums is None:
            return Rtn()
        if isinstance(chosen, Rtn) and item.name in self.want.ratios:
            return replace(chosen, ratio=float(self.want.ratios[item.name]))
        return chosen
