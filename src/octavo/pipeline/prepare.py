"""Second stage: bring a model into the form that planning needs.

A :class:`PreparedModel` is a value. A search makes one and hands it to every trial, which works on a copy:
copying shares all weights, and nothing is read or folded again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from octavo.core.granularity import PerBlock
from octavo.core.recipe import FloatType, Recipe
from octavo.core.scheme import Scheme
from octavo.model.files import io
from octavo.model.graph import meta, query
from octavo.model.prepare import PrepareOptions, PrepareReport, prepare, raise_opset, shapes
from octavo.model.prepare.widen import widen

LEAST_OPSET = 13  # the first with a scale for each channel
BLOCK_OPSET = 21  # the first with blocks
BFLOAT16_OPSET = 22  # the first with convolutions and poolings in bfloat16
_AS_IT_IS = PrepareOptions(symbolic_shapes=False, fold_batch_norm=False, fold_constants=False, fuse=False)
UNCHANGED = replace(_AS_IT_IS, remove_no_ops=False, describe=False)  # where every node is expected again


@dataclass(frozen=True)
class PreparedModel:
    """A model that is ready to be planned for, and what is known of the float model."""

    model: ir.Model
    report: PrepareReport
    float_bytes: int
    source: io.ModelSource
    fingerprint: str | None = None  # of the float model, where it was requested

    def copy(self) -> PreparedModel:
        """Return the same with a model of its own, which a run may change; weights are shared."""
        return replace(self, model=io.load(self.model))

    def at_opset(self, opset: int) -> PreparedModel:
        """This model at an opset that is at least the one given."""
        if query.opset(self.model) < opset:
            shapes.infer(self.model)  # some conversions depend on types and ranks
            raise_opset(self.model, opset)
        return self


def ready(model: ir.Model, opset: int, options: PrepareOptions | None) -> PrepareReport:
    """Prepare a model in place: normal form, passes, float32, an opset. Preparing it again changes nothing.

    With ``options`` None only what planning can't do without is done.
    """
    wanted = options if options is not None else _AS_IT_IS
    meta.annotate(model, op_types={node.name or "": node.op_type for node in query.nodes(model)})
    report = prepare(model, replace(wanted, opset=max(opset, wanted.opset or 0)))
    kinds = sorted(
        {v.dtype.name.lower() for v in model.graph.inputs if v.dtype is not None and query.is_float(v)}
    )
    if widen(model):
        note = f"computed in float32; inputs and outputs keep their types ({', '.join(kinds) or 'no floats'})"
        report = replace(report, notes=(*report.notes, note))
    return report


def prepare_name(options: PrepareOptions | None) -> str:
    """Describe how a model is prepared. The opset is left out: it changes no tensor."""
    if options is None:
        return "as it is"
    usual = PrepareOptions()
    changed = {key: value for key, value in vars(options).items() if value != vars(usual)[key]}
    changed.pop("opset", None)
    return ", ".join(f"{key}={value}" for key, value in changed.items()) or "as usual"


def needed_opset(recipe: Recipe) -> int:
    """Return the lowest opset that can express the types and granularities of a recipe."""
    if recipe.is_weight_only:
        return LEAST_OPSET  # the plan knows: operators of the runtime hold integers in bytes
    schemes: list[Scheme] = [recipe.weights]
    if isinstance(recipe.activations, Scheme):
        schemes.append(recipe.activations)
    types = [s.qtype for s in schemes] + [o.qtype for o in recipe.overrides if o.qtype is not None]
    grains = [s.granularity for s in schemes] + [o.granularity for o in recipe.overrides]
    blocks = any(isinstance(grain, PerBlock) for grain in grains)
    half = recipe.half
    bfloat16 = half is not None and half.float_type is FloatType.BFLOAT16 and half.compute is not False
    opsets = [*([BLOCK_OPSET] if blocks else []), *([BFLOAT16_OPSET] if bfloat16 else [])]
    return max([LEAST_OPSET, *(t.min_opset for t in types), *opsets])
