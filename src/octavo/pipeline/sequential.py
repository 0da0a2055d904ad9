"""Weights quantized layer by layer, each with what its layer reads when all layers before it are quantized.

The main graph is cut at the layers. Layers that no other of them lies between are a group: queries, keys and
values of one block, for example. For each group in turn, every sample is at the cut before it::

    statistics of what the group reads ─► integers of its weights ─► run on, to the cut before the next group

so that each operator runs once for each sample, with the weights that are going to be stored, and the
statistics of one group are in memory at a time. What the rest of the graph still needs of each sample is kept
from one cut to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from octavo.algorithms.weights.blocks import Algorithm, Inputs
from octavo.algorithms.weights.gptq import Gptq
from octavo.algorithms.weights.registry import algorithm
from octavo.core.arrays import HOST, Arrays, arrays
from octavo.core.blocks import Array, Blocks
from octavo.core.plan import Key, Plan
from octavo.core.qparams import QParams
from octavo.data.feeds import copied
from octavo.data.fingerprints import FingerprintedSamples
from octavo.errors import DataError, RecipeError
from octavo.model.graph import query
from octavo.model.runtime.session import Session
from octavo.pipeline.options import Run
from octavo.pipeline.weight_inputs import memory
from octavo.planning.resolve import Params, Slot, algorithm_slots, by_algorithm
from octavo.planning.weights import weight_of

States: TypeAlias = list[dict[str, Array]]  # of each sample, the tensors that are known at a cut

_MAX_SHARE = 0.5  # of the machine's memory that the samples at a cut may take


def quantized_in_order(model: ir.Model, plan: Plan, samples: FingerprintedSamples | None, run: Run) -> Params:
    """Return the parameters of all weights that algorithms quantize."""
    if samples is None:
        raise DataError(
            "gptq:sequential runs the model on the data while it quantizes: give data instead of statistics,"
            " or leave sequential out."
        )
    if samples.fingerprint is not None and not samples.can_repeat:
        raise DataError(
            "gptq:sequential reads the data after calibration does, and this data can be read only once; give"
            " a list or a path."
        )
    walk = _Walk(model, plan)
    states = [copied(sample) for sample in samples]
    values = query.values(model)
    found: Params = {}
    for depth in range(walk.last + 1):
        run.progress("sequential", depth, walk.last + 1)
        group = [key for key in walk.groups[depth] if key not in found]
        changed = _quantized(group, walk, states, values, found)
        walk.run_on(depth, changed, states, run)
    return found


class _Walk:
    """The graph in segments: segment ``d`` begins with the layers of group ``d`` and ends before the next."""

    def __init__(self, model: ir.Model, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.slots = algorithm_slots(plan, query.values(model))
        by_node: dict[str, list[Key]] = defaultdict(list)
        for key in self.slots:
            by_node[key.consumer or ""].append(key)
        self.nodes = {node.name or "": node for node in model.graph}
        for key in self.slots:
            if key.consumer not in self.nodes:
                raise RecipeError(
                    f"gptq:sequential can't follow the model into the branch that holds {key.consumer!r};"
                    " leave sequential out."
                )
        self.groups: dict[int, list[Key]] = defaultdict(list)
        self._depth: dict[ir.Node, int] = {}
        self._reads = {node: _read(node, model.graph) for node in model.graph}
        for node in model.graph:
            producers = (value.producer() for value in self._reads[node])
            depth = max((self._depth[one] for one in producers if one is not None), default=0)
            own = by_node.get(node.name or "", [])
            layers = [key for key in own if self.algorithm(key).wants is not Inputs.NONE]
            self._depth[node] = depth + 1 if layers else depth
            self.groups[self._depth[node]] += own
        self.last = max(self.groups, default=0)

    def algorithm(self, key: Key) -> Algorithm:
        """Return the algorithm of a weight."""
        return algorithm(self.slots[key].entry.algorithm or "rtn")

    def run_on(self, depth: int, changed: Mapping[str, Array], states: States, run: Run) -> None:
        """Run every sample through a segment, and keep what the segments after it read."""
        mine = {node for node, at in self._depth.items() if at == depth}
        later = {value for node, at in self._depth.items() if at > depth for value in self._reads[node]}
        made = [value for node in mine for value in node.outputs if value in later]
        if made:
            read = {value for node in mine for value in self._reads[node]}
            given = [value for value in read if value.producer() not in mine]
            session = self._segment(given, made, changed, states[0], run)
            for state in states:
                feed = {value.name or "": state[value.name or ""] for value in given}
                state.update(session.run(feed, [value.name or "" for value in made]))
        kept = {value.name for value in later}
        for state in states:
            for name in set(state) - kept:
                del state[name]
        _check_memory(states)

    def _segment(
        self,
        given: list[ir.Value],
        made: list[ir.Value],
        changed: Mapping[str, Array],
        first: Mapping[str, Array],
        run: Run,
    ) -> Session:
        graph = ir.convenience.extract(self.model.graph, given, made)
        for name, content in changed.items():
            if name in graph.initializers:
                graph.initializers[name].const_value = ir.tensor(content, name=name)
        for value in graph.inputs:
            array = first[value.name or ""]
            value.dtype, value.shape = ir.DataType.from_numpy(array.dtype), ir.Shape([None] * array.ndim)
        execution = run.execution
        return Session.open(
            ir.Model(graph, ir_version=self.model.ir_version, functions=list(self.model.functions.values())),
            providers=execution.providers,
            threads=execution.threads,
            custom_ops=execution.custom_ops,
        )


def _read(node: ir.Node, graph: ir.Graph) -> list[ir.Value]:
    """Return the values of the main graph that a node reads, by its branches too; constants left out."""
    found = [value for value in node.inputs if value is not None]
    for branch in query.subgraphs(node):
        for inner in ir.traversal.RecursiveGraphIterator(branch):
            found += [value for value in inner.inputs if value is not None and value.graph is graph]
        found += [value for value in branch.outputs if value.graph is graph]
    return [value for value in dict.fromkeys(found) if not value.is_initializer()]


def _quantized(
    group: list[Key],
    walk: _Walk,
    states: States,
    values: Mapping[str, ir.Value],
    found: Params,
) -> dict[str, Array]:
    """Quantize the weights of a group; return what the initializers hold then, by their names."""
    statistics: dict[tuple[str, Inputs], Array] = {}
    together: dict[Slot, list[Key]] = defaultdict(list)
    for key in group:
        together[walk.slots[key]].append(key)
    changed: dict[str, Array] = {}
    for slot, keys in together.items():
        inputs = [_inputs(key, walk, states, statistics) for key in keys]
        known = [one for one in inputs if one is not None]
        params = by_algorithm(keys[0], slot, values, sum(known[1:], known[0]) if known else None)
        for key, other in walk.slots.items():
            if other == slot:
                found[key] = params
        changed.update(_stored(keys[0], params, values))
    return changed


def _inputs(
    key: Key, walk: _Walk, states: States, statistics: dict[tuple[str, Inputs], Array]
) -> Array | None:
    """Return what an algorithm wants to know of what a layer reads, summed over all samples."""
    wants, x = walk.algorithm(key).wants, walk.nodes[key.consumer or ""].inputs[0]
    if wants is Inputs.NONE or x is None:
        return None
    slot = (x.name or "", wants)
    if slot not in statistics:
        chosen = walk.algorithm(key)
        xp = arrays(chosen.device) if isinstance(chosen, Gptq) else HOST
        parts = (_summed(state[x.name or ""], wants, xp) for state in states)
        statistics[slot] = sum(parts, np.zeros(()))
    return statistics[slot]


def _summed(x: Array, wants: Inputs, xp: Arrays) -> Array:
    vectors = x.reshape(-1, x.shape[-1]).astype(np.float32, copy=False)
    if wants is Inputs.PRODUCTS:
        placed = xp.put(vectors)
        return xp.get(placed.swapaxes(0, 1) @ placed).astype(np.float64)
    return np.asarray(np.einsum("nk,nk->k", vectors, vectors, dtype=np.float64))


def _stored(key: Key, params: QParams, values: Mapping[str, ir.Value]) -> Iterator[tuple[str, Array]]:
    """Yield the initializer of a weight, with the values that its integers represent."""
    source, matrix = weight_of(values[key.tensor]), params.matrix
    if source is None or matrix is None or source[0].const_value is None:
        return
    value, perm = source
    axis = getattr(params.granularity, "axis", None) or 0
    stored = np.asarray(source[0].const_value.numpy())
    dims = stored.shape if perm is None else tuple(stored.shape[i] for i in perm)
    rows = Blocks(matrix.integers, matrix.scale, matrix.zero_point, matrix.scheme).real()
    others = [dim for i, dim in enumerate(dims) if i != axis]
    read = np.moveaxis(rows.reshape(*others, dims[axis]), -1, axis)
    content = read if perm is None else read.transpose(np.argsort(perm))
    yield value.name or "", np.ascontiguousarray(content, stored.dtype)


def _check_memory(states: States) -> None:
    taken = sum(array.nbytes for state in states for array in state.values())
    if taken > _MAX_SHARE * memory():
        raise DataError(
            f"gptq:sequential keeps what layers read of all {len(states)} samples, here {taken / 1e9:.1f} GB,"
            " more than half of this machine's memory; give fewer samples, or leave sequential out."
        )
