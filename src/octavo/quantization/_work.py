"""The steps behind every entry point: load, plan, find ranges, write. Each is a call into the core."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from octavo import calibration, emission, measuring, pipeline, planning
from octavo.core.plan import Measured, Plan
from octavo.core.qtypes import QType
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.core.stats import Range
from octavo.errors import closest
from octavo.model import io, query
from octavo.model.prepare import PrepareOptions
from octavo.model.prepare.biases import own_biases
from octavo.model.prepare.shapes import assume_type
from octavo.model.prepare.widen import store_narrow
from octavo.ops.hooks import clamp_bounds
from octavo.quantization import _overrides
from octavo.quantization._errors import InferenceError, OptionError, RangeError
from octavo.quantization._overrides_check import problem
from octavo.quantization._types import QuantType
from octavo.quantization.translate import MS, Calibration, Names, Request, Settings
from octavo.reporting.text import clean
from octavo.targets import target as find_target

Source = str | Path | onnx.ModelProto
uncollected = pipeline.uncollected

_LEAST_OPSET = 13  # DequantizeLinear along an axis
_NEWEST = 21  # 16 bits, float8 and blocks
_AS_IT_IS = PrepareOptions(
    symbolic_shapes=False, fold_batch_norm=False, fold_constants=False, fuse=False, remove_no_ops=False
)


class QuantizationWarning(UserWarning):
    """A result that is worse than it could be, and what to change."""


@dataclass(frozen=True)
class Job:
    """A model that is ready to be written, and what will be done to it."""

    model: ir.Model
    settings: Settings
    plan: Plan
    avoid: planning.Avoid = field(default_factory=planning.Avoid)

    @property
    def recipe(self) -> Recipe:
        """What was asked for."""
        return self.settings.recipe


def opened(source: Source, request: Request, output: str | Path | None = None) -> ir.Model:
    """An own copy of a model, at the opset that is needed; a file that is to be replaced is read at once."""
    if isinstance(source, str | Path):
        path = Path(source)
        if output is not None and Path(output).absolute() == path.absolute() and path.exists():
            model = io.load(path.read_bytes(), base_dir=path.parent, gather=True)
        else:
            model = io.load(path, gather=True)
    else:
        model = io.load(source, gather=True)
    pipeline.ready(model, _opset(request), _AS_IT_IS)
    return model


def names_of(model: ir.Model) -> Names:
    """The names that options may speak of."""
    readers: dict[str, list[str]] = {}
    sigmoids: list[str] = []
    nodes: set[str] = set()
    for node in query.nodes(model):
        nodes.add(node.name or "")
        if node.op_type == "Sigmoid":
            sigmoids.append(node.outputs[0].name or "")
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value.name or "", []).append(node.name or "")
    return Names(frozenset(nodes), readers, tuple(sigmoids), frozenset(model.graph.initializers))


def planned(model: ir.Model, settings: Settings) -> Job:
    """Plan for an opened model."""
    settings = _spelled(model, settings)
    if settings.recipe.is_static:
        own_biases(model)
    if settings.default_type is not None:
        assume_type(model, settings.default_type)
    else:
        _refuse_unknown_types(model, settings.recipe)
    plan = planning.build(model, settings.recipe, find_target("ort-cpu"))
    if not plan.nodes and not plan.entries:
        warnings.warn(
            "Nothing in the model was quantized: no node is of an op type asked for, or all are excluded.",
            QuantizationWarning,
            stacklevel=4,
        )
    return Job(model, settings, plan)


def _types(recipe: Recipe) -> list[QType]:
    schemes = [s for s in (recipe.weights, recipe.activations) if isinstance(s, Scheme)]
    return [s.qtype for s in schemes] + [o.qtype for o in recipe.overrides if o.qtype is not None]


def _opset(request: Request) -> int:
    """13 for scales along an axis; 21 for 16 bits, float8 and blocks."""
    options = request.options or {}
    types = {
        request.activation_type,
        request.weight_type,
        *_overrides.types(options.get("TensorQuantOverrides")),
    }
    newest = any(t.qtype.bits == 16 or t.qtype.is_float for t in types)
    return _NEWEST if newest or options.get("BlockSize") else _LEAST_OPSET


def _spelled(model: ir.Model, settings: Settings) -> Settings:
    """4-bit types before opset 21 exist in the runtime's own domain."""
    recipe = settings.recipe
    four = recipe.style is Style.QDQ and any(t.bits == 4 for t in _types(recipe))
    old = query.opset(model) < _NEWEST
    return settings.spelling(domain=MS) if four and old else settings


def check_overrides(model: ir.Model, options: Mapping[str, Any] | None, default: QuantType) -> None:
    """Raise for overrides of single tensors that make no sense for a model."""
    raw = (options or {}).get("TensorQuantOverrides")
    if not raw:
        return
    stored = {
        name: onnx.TensorProto(dims=v.shape.numpy())
        for name, v in model.graph.initializers.items()
        if v.shape
    }
    made = {v.name or "" for v in model.graph.inputs}
    made.update(v.name or "" for node in query.nodes(model) for v in node.outputs)
    for tensor, found in raw.items():
        wrong = problem(tensor, found, stored, made, default)
        if wrong is not None:
            raise OptionError(wrong)


def _refuse_unknown_types(model: ir.Model, recipe: Recipe) -> None:
    """In the integer styles a tensor of unknown type can't be left aside."""
    if recipe.style is Style.QDQ or recipe.op_types is None:
        return
    wanted = {"Conv", "MatMul", "Gemm"} & set(recipe.op_types)
    for node in model.graph:
        if node.op_type in wanted:
            for value in node.inputs[:2]:
                if value is not None and query.element_type(value) is None:
                    raise InferenceError(
                        f"The type of {value.name!r}, which {node.name!r} reads, can't be inferred; give"
                        " extra_options={'DefaultTensorType': onnx.TensorProto.FLOAT}, or exclude the node."
                    )


# ---- ranges


def in_strides(reader: Any, stride: int) -> Iterator[Mapping[str, Any]]:
    """The samples of a reader, asked for in ranges of a stride."""
    count = len(reader)
    if stride < 1 or count % stride:
        raise OptionError(
            f"The reader has {count} samples, which strides of {stride} do not divide evenly; choose another"
            " CalibStridedMinMax."
        )
    for start in range(0, count, stride):
        reader.set_range(start_index=start, end_index=start + stride)
        yield from iter(reader.get_next, None)


def measured(job: Job, reader: Any, providers: Sequence[str] | None) -> tuple[Job, dict[str, Range]]:
    """The extremes of what the plan asks for, in one pass; it is made anew around what has none."""
    stride = job.settings.calibration.stride
    data = reader if stride is None else in_strides(reader, stride)
    run = measuring.Run(providers=providers, stride=1)
    samples = measuring.watched(job.model, data, None)
    stats = measuring.collect(job.model, job.plan.needs(), samples, run)
    for _ in range(8):
        wanted = measuring.schemes(job.plan)
        bad = {n: why for n, why in calibration.unusable(stats, wanted).items() if n not in job.avoid.tensors}
        if not bad:
            return job, calibration.ranges(stats, wanted)
        avoid = job.avoid.and_also(planning.Avoid(tensors=bad))
        name, why = next(iter(bad.items()))
        warnings.warn(
            f"{len(bad)} tensors stay float, such as {clean(name)!r}: {clean(why, 800)}.",
            QuantizationWarning,
            stacklevel=4,
        )
        plan = planning.build(job.model, job.recipe, find_target("ort-cpu"), avoid)
        job = replace(job, plan=plan, avoid=avoid)
    raise RangeError("Calibration found no usable ranges; look at the data.")


def ranged(job: Job, tensors: Any) -> dict[str, Range]:
    """The ranges of a calibration done before, for the tensors that the plan asks for."""
    known: dict[str, Range] = tensors.ranges() if hasattr(tensors, "ranges") else dict(tensors)
    for name in job.plan.needs():
        if name not in known:
            raise RangeError(
                f"There is no range for tensor {name!r}{closest(name, known) or '.'} Calibrate with the op"
                " types that are quantized, or exclude the nodes that read or make it."
            )
    return known


def fitted(job: Job, tensors: Any) -> Job:
    """The job with clamps kept where the ranges that are known go below what they let through."""
    known: dict[str, Range] = tensors.ranges() if hasattr(tensors, "ranges") else dict(tensors)
    made = {n.outputs[0].name or "" for n in query.nodes(job.model) if n.name in job.plan.absorbed}
    made |= {
        entry.of
        for entry in job.plan.entries.values()
        if isinstance(entry, Measured) and entry.of is not None
    }
    clamps = {n.outputs[0].name or "": n for n in query.nodes(job.model) if n.op_type in ("Relu", "Clip")}
    if not any(name in known and known[name].low < 0.0 for name in made if starts_at_zero(clamps.get(name))):
        return job
    settings = job.settings.but(absorb_activations=False)
    return replace(
        job,
        settings=settings,
        plan=planning.build(job.model, settings.recipe, find_target("ort-cpu"), job.avoid),
    )


def starts_at_zero(clamp: ir.Node | None) -> bool:
    """Whether a clamp lets nothing below zero through."""
    bounds = clamp_bounds(clamp) if clamp is not None else None
    return bounds is not None and bounds[0] == 0.0


def with_given_ends(job: Job, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges with the ends that overrides give instead of the measured ones."""
    found = dict(ranges)
    for tensor, (low, high) in _overrides.given_ends(job.settings.raw_overrides).items():
        if tensor in found:
            was = found[tensor]
            found[tensor] = was._replace(
                low=was.low if low is None else low, high=was.high if high is None else high
            )
    return found


def plain_extremes(calibration_: Calibration) -> bool:
    """Whether the smallest and largest values are asked for, and nothing else."""
    options = calibration_.options
    return (
        calibration_.method.name == "MinMax"
        and not options.get("symmetric")
        and not options.get("moving_average")
    )


# ---- results


def written(job: Job, ranges: Mapping[str, Range]) -> ir.Model:
    """The quantized model."""
    params = planning.resolve(job.model, job.plan, with_given_ends(job, ranges))
    emission.emit(job.model, job.plan, params)
    store_narrow(job.model)
    return job.model


def save(model: ir.Model, output: str | Path, use_external_data_format: bool) -> None:
    """Write the model: it appears as a whole or not at all, and an older file is replaced.

    The model is of no more use then: it lets go of its weights at once, and need not wait for Python's
    collector of cycles to do so.
    """
    io.save(model, output, external_data=use_external_data_format or None)
    for value in query.initializers(model.graph).values():
        value.const_value = None
