"""The steps behind every entry point: load, plan, find ranges, write. Each is a call into the core."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from octavo import calibration, emission, ops, pipeline, planning
from octavo.core.outputs import is_same_file, refuse_inputs
from octavo.core.plan import Measured, Plan
from octavo.core.qtypes import QType
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.core.stats import Range
from octavo.errors import closest
from octavo.model.files import io
from octavo.model.files.serialize import INLINE_MOST
from octavo.model.graph import query
from octavo.model.graph.tensors import tensor_bytes
from octavo.model.prepare.opset import oldest_with_bytes
from octavo.model.prepare.rewrites import own_biases
from octavo.model.prepare.shapes import assume_type
from octavo.model.prepare.widen import store_narrow
from octavo.ops import CLAMPS, MATRIX_FOR_EACH_GROUP
from octavo.ops.hooks import clamp_bounds
from octavo.quantization import _overrides, registry
from octavo.quantization._errors import InferenceError, OptionError, QuantizationWarning, RangeError
from octavo.quantization._types import QuantType
from octavo.quantization.translate import MS, Calibration, Request, Settings
from octavo.reporting.text import clean
from octavo.targets import target as find_target

Source = str | Path | onnx.ModelProto

_NATIVE_FOUR_BITS = 21  # the first opset whose own QuantizeLinear takes 4 bits


@dataclass(frozen=True)
class Job:
    """A plan for a model that is ready to be written, and the settings of the call."""

    settings: Settings
    planned: pipeline.Planned

    @property
    def model(self) -> ir.Model:
        """Return the model, which will be changed in place."""
        return self.planned.model

    @property
    def recipe(self) -> Recipe:
        """Return the recipe that the settings amount to."""
        return self.planned.recipe

    @property
    def plan(self) -> Plan:
        """Return what will be done to the model."""
        return self.planned.plan


def opened(source: Source, request: Request, output: str | Path | None = None) -> ir.Model:
    """An own copy of a model, at the opset that is needed; a file that is to be replaced is read at once."""
    registry.warn_of_own_rules(request.op_types, stacklevel=3)
    if isinstance(source, str | Path):
        path = Path(source)
        if output is not None and Path(output).absolute() == path.absolute() and path.is_file():
            model = io.load(path.read_bytes(), base_dir=path.parent, lift_constants=True)
        else:
            model = io.load(path, lift_constants=True)
    else:
        model = io.load(source, lift_constants=True)
    pipeline.ready(model, _opset(request, model), pipeline.UNCHANGED)
    return model


def refuse_output(output: str | Path, source: Source, reader: Any, cache: str | Path | None) -> None:
    """Raise where the output is the calibration cache, or a file that the data reader names."""
    held = vars(reader) if hasattr(reader, "__dict__") else {}
    named = {
        name: one for name, one in held.items() if isinstance(one, str | Path) and _is_other(one, source)
    }
    if cache is not None and Path(cache).absolute() == Path(output).absolute():
        raise OptionError(
            f"model_output and calibration_cache_path are both {output}; choose another output."
        )
    refuse_inputs(
        {"model_output": output}, {"calibration_cache_path": cache, "calibration_data_reader": named}
    )


def _is_other(path: str | Path, source: Source) -> bool:
    """Whether a path is that of a file other than the model, which may be replaced."""
    if not os.path.isfile(path):  # noqa: PTH113 - False for names too long
        return False
    return isinstance(source, onnx.ModelProto) or not is_same_file(Path(path), Path(source))


def planned(model: ir.Model, settings: Settings) -> Job:
    """Plan for an opened model."""
    settings = _in_domain(model, settings)
    if settings.recipe.is_static:
        own_biases(model)
    if settings.default_type is not None:
        assume_type(model, settings.default_type)
    else:
        _complete_types(model, settings.recipe)
    target = find_target("ort-cpu")
    plan = planning.build(model, planning.policy_for(settings.recipe, target))
    if not plan.nodes and not plan.entries:
        warnings.warn(
            "Nothing in the model was quantized: no node has a requested op type, or all are excluded.",
            QuantizationWarning,
            stacklevel=4,
        )
    return Job(settings, pipeline.Planned(model, settings.recipe, target, plan, planning.Avoid()))


def _types(recipe: Recipe) -> list[QType]:
    schemes = [s for s in (recipe.weights, recipe.activations) if isinstance(s, Scheme)]
    return [s.qtype for s in schemes] + [o.qtype for o in recipe.overrides if o.qtype is not None]


def _opset(request: Request, model: ir.Model) -> int:
    """Return the oldest opset that has what is requested.

    That is 21 for 16 bits, float8 and blocks, 13 for scales along an axis, and 11 for ranges that are found
    while the model runs, or where conversion has to begin anyway. In QOperator it is the one since which the
    operators that stay what they are read integers, such as 12 for MaxPool. The rest exists since opset 10.
    """
    options = request.options or {}
    overrides = options.get("TensorQuantOverrides")
    types = {request.activation_type, request.weight_type, *_overrides.types(overrides)}
    now = query.opset(model)
    if options.get("BlockSize") or any(t.qtype.bits == 16 or t.qtype.is_float for t in types):
        return 21
    if request.style is Style.QDQ and (request.per_channel or _overrides.along_an_axis(overrides)):
        return 13
    op_types = {node.op_type for node in query.nodes(model) if not node.domain}.intersection(request.op_types)
    least = 11 if now < 10 or (request.style is Style.INTEGER and op_types) else 10
    if request.style is not Style.QOPERATOR:
        return least
    rules = {op: ops.RULES.get(("", op)) for op in op_types}
    moved = [op for op, rule in rules.items() if rule is not None and rule.kind is ops.Kind.DATA_MOVEMENT]
    return max([least, *(oldest_with_bytes(op, max(now, least)) for op in moved)])


def _in_domain(model: ir.Model, settings: Settings) -> Settings:
    """Return the settings with the runtime's own domain for 4-bit types before opset 21."""
    recipe = settings.recipe
    four = recipe.style is Style.QDQ and any(t.bits == 4 for t in _types(recipe))
    old = query.opset(model) < _NATIVE_FOUR_BITS
    return settings.writing(domain=MS) if four and old else settings


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
        wrong = _overrides.problem(tensor, found, stored, made, default)
        if wrong is not None:
            raise OptionError(wrong)


def _complete_types(model: ir.Model, recipe: Recipe) -> None:
    """Give what a layer reads the type that its result is declared with; raise where nothing tells the type.

    In the integer styles a tensor of unknown type can't be left aside.
    """
    if recipe.style is Style.QDQ or recipe.op_types is None:
        return
    layers = MATRIX_FOR_EACH_GROUP & set(recipe.op_types)
    for node in model.graph:
        if node.op_type not in layers:
            continue
        declared = query.element_type(node.outputs[0])
        for value in node.inputs[:2]:
            if value is None or query.element_type(value) is not None:
                continue
            if declared is None:
                raise InferenceError(
                    f"The type of {value.name!r}, which {node.name!r} reads, can't be inferred; give"
                    " extra_options={'DefaultTensorType': onnx.TensorProto.FLOAT}, or exclude the node."
                )
            value.type = ir.TensorType(declared)


# ---- ranges


def in_strides(reader: Any, stride: int | None) -> Iterator[Any]:
    """Yield the reader, once for each range of a stride; as it is without one."""
    if stride is None:
        yield reader
        return
    count = len(reader)
    if stride < 1 or count % stride:
        raise OptionError(
            f"The reader has {count} samples, which strides of {stride} do not divide evenly; choose another"
            " CalibStridedMinMax."
        )
    for start in range(0, count, stride):
        reader.set_range(start_index=start, end_index=start + stride)
        yield reader


def calibration_run(providers: Sequence[str] | None) -> pipeline.Run:
    """Return the settings of a pass over the data in which every value counts."""
    return pipeline.run_of({"providers": providers, "stride": 1})


def measured(job: Job, reader: Any, providers: Sequence[str] | None) -> tuple[Job, dict[str, Range]]:
    """Return the extremes of what the plan asks for, in one pass; it is made anew around what has none."""
    stride = job.settings.calibration.stride
    ranges = in_strides(reader, stride)
    data = reader if stride is None else (sample for one in ranges for sample in iter(one.get_next, None))
    run = calibration_run(providers)
    samples = pipeline.samples_of(job.model, data, None)
    stats = pipeline.observe(job.model, job.plan.needs(), samples, run)
    for _ in range(8):
        wanted = pipeline.schemes(job.plan)
        avoided = job.planned.avoid.tensors
        bad = {n: why for n, why in calibration.unusable(stats, wanted).items() if n not in avoided}
        if not bad:
            return job, calibration.ranges(stats, wanted)
        name, why = next(iter(bad.items()))
        warnings.warn(
            f"{len(bad)} tensors stay float, such as {clean(name)!r}: {clean(why, 800)}.",
            QuantizationWarning,
            stacklevel=4,
        )
        job = replace(job, planned=job.planned.around(planning.Avoid(tensors=bad)))
    raise RangeError("Calibration found no usable ranges; look at the data.")


def _known(job: Job, tensors: Any) -> dict[str, Range]:
    """Return the ranges of tensors; those of inputs and outputs hold for the same tensors in float32."""
    known: dict[str, Range] = dict(tensors.ranges() if hasattr(tensors, "ranges") else tensors)
    for outer, inner in job.settings.names.inner.items():
        if outer in known:
            known.setdefault(inner, known[outer])
    return known


def ranged(job: Job, tensors: Any) -> dict[str, Range]:
    """Return the ranges of a calibration done before, for the tensors that the plan asks for."""
    known = _known(job, tensors)
    for name in job.plan.needs():
        if name not in known:
            raise RangeError(
                f"There is no range for tensor {name!r}{closest(name, known) or '.'} Calibrate with the op"
                " types that are quantized, or exclude the nodes that read or make it."
            )
    return known


def fitted(job: Job, tensors: Any) -> Job:
    """Return the job with clamps kept where the ranges that are known go below what they let through."""
    known = _known(job, tensors)
    made = {n.outputs[0].name or "" for n in query.nodes(job.model) if n.name in job.plan.fused}
    made |= {
        entry.of
        for entry in job.plan.entries.values()
        if isinstance(entry, Measured) and entry.of is not None
    }
    clamps = {n.outputs[0].name or "": n for n in query.nodes(job.model) if n.op_type in CLAMPS}
    if not any(name in known and known[name].low < 0.0 for name in made if starts_at_zero(clamps.get(name))):
        return job
    settings = job.settings.but(fuse_clamps=False)
    return Job(settings, job.planned.by(settings.recipe))


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
    """Whether the smallest and largest values are requested, and nothing else."""
    options = calibration_.options
    return (
        calibration_.method.name == "MinMax"
        and not options.get("symmetric")
        and not options.get("moving_average")
    )


# ---- results


def written(job: Job, ranges: Mapping[str, Range]) -> ir.Model:
    """Return the quantized model."""
    params = planning.resolve(job.model, job.plan, with_given_ends(job, ranges))
    emission.emit(job.model, job.plan, params)
    store_narrow(job.model)
    _name_as_outside(job.model, job.settings.names.inner)
    return job.model


def _name_as_outside(model: ir.Model, inner: Mapping[str, str]) -> None:
    """Name what quantization adds around inputs and outputs after these, not after their float32 forms."""
    if not inner:
        return
    values = [v for node in query.nodes(model) for v in node.outputs]
    values += query.initializers(model.graph).values()
    taken = {value.name for value in (*values, *model.graph.inputs)}
    named: list[ir.Value | ir.Node] = [*values, *query.nodes(model)]
    for one in named:
        for outer, name in inner.items():
            if one.name is None or not one.name.startswith(f"{name}_"):
                continue
            new = outer + one.name.removeprefix(name)
            if isinstance(one, ir.Node) or new not in taken:
                taken.add(new)
                one.name = new


def save(model: ir.Model, output: str | Path, use_external_data_format: bool) -> None:
    """Write the model: it appears as a whole or not at all, and an older file is replaced.

    The model is of no more use then: it lets go of its weights at once, and need not wait for Python's
    collector of cycles to do so. Where all weights are small, there is no file beside it.
    """
    weights = query.initializers(model.graph).values()
    beside = use_external_data_format and any(
        tensor_bytes(value.const_value) >= INLINE_MOST for value in weights if value.const_value is not None
    )
    io.save(model, output, external_data=beside or None)
    for value in weights:
        value.const_value = None
