"""The checks of ``doctor``: each yields findings with a severity, a place, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo import calibration, planning
from octavo.core import kernels
from octavo.core.affine import from_range
from octavo.core.granularity import PerChannel, PerTensor
from octavo.core.plan import Constant, Measured, Plan
from octavo.core.progress import Progress
from octavo.core.requests import Histogram, Request
from octavo.core.scheme import MinMax, Percentile, Scheme
from octavo.core.stats import Range, Stats
from octavo.data.feeds import Data
from octavo.data.fingerprints import FingerprintedSamples
from octavo.errors import DataError
from octavo.model.graph import query
from octavo.model.prepare.prepare_report import describe_kind
from octavo.model.prepare.shapes import sympy_is_installed
from octavo.model.runtime.session import runtime_opset_limit
from octavo.planning import hazards
from octavo.planning.resolve import weight_array
from octavo.reporting.text import many, some

LEAST_OPSET = 13  # scales per channel
MIN_SAMPLES = 8  # samples; fewer make poor ranges
GAIN = 10.0  # dB by which scales per channel have to be better to be worth a word
POOR = 25.0  # dB of a weight at 8 bits
OUTLIER_RATIO = 8.0  # how many times the range of 99.99 % of the values the whole range is
ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True)
class Finding:
    """One thing to know: how bad it is, where, what, and what to do."""

    severity: str
    topic: str
    place: str
    text: str
    advice: str


# ---- structure


def kind(model: ir.Model) -> Iterator[Finding]:
    """Yield what differs from a plain float32 model, and what is quantized already."""
    sentence = describe_kind(model)
    if sentence is not None:
        yield Finding(NOTE, "kind", "the model", sentence, "nothing")
    counts = query.classify(model)
    if counts.quantized:
        yield Finding(
            WARNING,
            "quantized already",
            f"{counts.quantized} nodes",
            f"{counts.quantize} QuantizeLinear, {counts.dequantize} DequantizeLinear and"
            f" {counts.integer + counts.blockwise} integer operators are there already",
            "quantize the float model that this one was made from",
        )


def opset(model: ir.Model) -> Iterator[Finding]:
    """Report an opset that is too old or too new."""
    version, newest = query.opset(model), runtime_opset_limit()
    if version > newest:
        text = f"opset {version} is newer than the installed onnxruntime, which knows {newest}"
        yield Finding(
            ERROR, "opset", f"opset {version}", text, "export with an older opset, or install a newer one"
        )
    elif version < LEAST_OPSET:
        text = (
            f"opset {version} has no scales per channel; the model is raised to {LEAST_OPSET} to be quantized"
        )
        yield Finding(
            NOTE, "opset", f"opset {version}", text, f"export with opset {LEAST_OPSET} or newer if you can"
        )


def unused(model: ir.Model) -> Iterator[Finding]:
    """Yield weights that nothing reads."""
    dead = [
        value
        for graph in query.graphs(model)
        for value in graph.initializers.values()
        if not value.uses() and not value.is_graph_output() and value.const_value is not None
    ]
    size = sum(int(v.const_value.nbytes) for v in dead if v.const_value is not None)
    if dead:
        text = f"{len(dead)} weights of {size} bytes are read by no node"
        yield Finding(
            NOTE, "dead weights", some(v.name or "" for v in dead), text, "nothing: they are left out"
        )


def shapes(model: ir.Model) -> Iterator[Finding]:
    """Yield tensors whose rank is not known."""
    unknown = [
        v.name or ""
        for node in query.nodes(model)
        for v in node.outputs
        if query.is_float(v) and query.rank(v) is None
    ]
    if unknown:
        yield Finding(
            WARNING,
            "missing shapes",
            some(unknown),
            f"the rank of {len(unknown)} tensors is not known, and operators on them may stay in float",
            "export with shapes"
            if sympy_is_installed()
            else "install sympy (octavo[shapes]), or export with shapes",
        )


def masks(model: ir.Model) -> Iterator[Finding]:
    """Yield what the structure alone shows to lose accuracy."""
    avoid = hazards.structural(list(query.nodes(model)))
    for node, reason in avoid.nodes.items():
        topic = "masks" if "mask" in reason else "ranges"
        yield Finding(NOTE, topic, node, reason, "nothing: it is kept in float")


def weights(model: ir.Model, plan: Plan) -> Iterator[Finding]:
    """Yield weights that 8 bits do not hold, or only with a scale per channel."""
    values = {v.name: v for node in query.nodes(model) for v in node.inputs if v is not None}
    per_tensor: list[tuple[str, float, float]] = []
    for key, entry in plan.entries.items():
        value = values.get(key.tensor)
        if not isinstance(entry, Constant) or value is None or entry.scheme.qtype.bits > 8:
            continue
        content = weight_array(value)
        if not content.size or content.ndim < 2:
            continue
        if not np.isfinite(content).all():
            yield Finding(
                ERROR, "weights", key.tensor, "it holds NaN or infinity", "repair or retrain the model"
            )
        elif not content.any():
            yield Finding(WARNING, "dead weights", key.tensor, "all its values are zero", "prune the layer")
        else:
            one, each = _both_ways(content, entry.scheme)
            if each < POOR:
                text = f"in 8 bits it has only {each:.0f} dB: it has outliers among small weights"
                yield Finding(
                    WARNING, "outliers", key.tensor, text, f"exclude {key.consumer!r}, or use blocks"
                )
            elif each - one > GAIN:
                per_tensor.append((key.tensor, one, each))
    if per_tensor:
        worst = max(per_tensor, key=lambda item: item[2] - item[1])
        text = (
            f"{len(per_tensor)} weights have channels of different magnitude: at worst {worst[1]:.0f} dB with"
            f" one scale, {worst[2]:.0f} dB with one per channel"
        )
        yield Finding(NOTE, "channels", worst[0], text, "keep scales per channel, which are the default")
    for node, reason in planning.lost_weights(model, plan).nodes.items():
        yield Finding(WARNING, "outliers", node, reason, "nothing: it is kept in float")


def _both_ways(content: np.ndarray, scheme: Scheme) -> tuple[float, float]:
    """Return the SQNR of the median channel of a weight with one scale, and with one per channel."""
    axis = scheme.granularity.axis if isinstance(scheme.granularity, PerChannel) else 0
    wide = content.astype(np.float32, copy=False)
    others = tuple(i for i in range(wide.ndim) if i != (axis or 0) % wide.ndim)
    energy = np.square(wide, dtype=np.float64).sum(others)
    found = []
    for grain in (PerTensor(), PerChannel(axis or 0)):
        low, high = kernels.extremes(wide, grain)
        params = from_range(low, high, scheme.but(granularity=grain))
        noise = np.square(wide - kernels.fake_quantize(wide, params), dtype=np.float64).sum(others)
        ratio = np.maximum(energy, 1e-300) / np.maximum(noise, 1e-300)
        found.append(float(np.median(10 * np.log10(ratio[energy > 0]))))
    return found[0], found[1]


# ---- data


def with_data(
    model: ir.Model,
    plan: Plan,
    data: Data,
    limit: int | None,
    threads: int | None,
    progress: Progress | None,
) -> tuple[list[Finding], int]:
    """Return what the data shows, and how many samples there were."""
    wanted = {key.tensor: entry.scheme for key, entry in plan.entries.items() if isinstance(entry, Measured)}
    tell = (lambda done, total: progress("look at data", done, total)) if progress is not None else None
    joins = _joins(model)
    looked = dict.fromkeys([*wanted, *(name for names in joins.values() for name in names)])
    looked = looked or dict.fromkeys(v.name or "" for v in model.graph.inputs if query.is_float(v))
    try:
        source = FingerprintedSamples.of(data, model, limit=limit)
        stats = calibration.collect(
            model, dict.fromkeys(looked, Request(Histogram())), source, threads=threads, progress=tell
        )
    except DataError as error:
        return [Finding(ERROR, "data", "calibration data", str(error), "repair the data")], 0
    found = [Finding(WARNING, "data", "calibration data", text, "check the samples") for text in source.notes]
    if stats.samples < MIN_SAMPLES:
        text = f"{many(stats.samples, 'sample')} make poor ranges"
        found.append(Finding(NOTE, "data", "calibration data", text, "use 32 to 128 samples of real use"))
    found += _outliers(stats, wanted)
    found += _unlike(joins, stats)
    found += _unusable(model, plan, stats, wanted)
    return found, stats.samples


def _outliers(stats: Stats, wanted: Mapping[str, Scheme]) -> Iterator[Finding]:
    """Yield activations whose range is made by very few values."""
    usable = {
        name: scheme for name, scheme in wanted.items() if name not in calibration.unusable(stats, wanted)
    }
    whole = calibration.ranges(stats, {n: s.but(method=MinMax()) for n, s in usable.items()})
    core = calibration.ranges(stats, {n: s.but(method=Percentile(99.99)) for n, s in usable.items()})
    for name, span in whole.items():
        ratio = _width(span) / max(_width(core[name]), 1e-38)
        if ratio > OUTLIER_RATIO:
            text = (
                f"its values reach {span.low:.3g} … {span.high:.3g}, and 99.99 % of them lie in a range"
                f" {ratio:.0f} times smaller"
            )
            advice = "try --method percentile:99.99 or mse, or exclude what reads it"
            yield Finding(WARNING, "outliers", name, text, advice)


def _width(span: Range) -> float:
    return span.high - span.low


def _joins(model: ir.Model) -> dict[str, list[str]]:
    """Return the computed float tensors that each Concat joins."""
    found: dict[str, list[str]] = {}
    for node in query.nodes(model):
        if node.op_type == "Concat" and not node.domain:
            joined = [
                v for v in node.inputs if v is not None and query.is_float(v) and query.constant(v) is None
            ]
            if len(joined) > 1:
                found[node.name or ""] = [v.name or "" for v in joined]
    return found


def _unlike(joins: Mapping[str, list[str]], stats: Stats) -> Iterator[Finding]:
    """Yield concats of ranges that one scale can't hold."""
    for node, names in joins.items():
        tops = [max(-stats[n].low, stats[n].high) for n in names if n in stats and not stats[n].non_finite]
        if len(tops) > 1 and 0 < min(tops) * hazards.RATIO <= max(tops):
            ends = f"{min(tops):.3g} and {max(tops):.3g}"
            text = f"it joins ranges of {ends}, and one scale leaves little resolution for the smaller one"
            advice = f"exclude {node!r}, unless a layer with weights reads all of it"
            yield Finding(WARNING, "mixed-range concat", node, text, advice)


def _unusable(model: ir.Model, plan: Plan, stats: Stats, wanted: Mapping[str, Scheme]) -> Iterator[Finding]:
    """Yield tensors that the planner will go around once it has the numbers."""
    ranges = calibration.ranges(stats, wanted)
    unseen = frozenset(name for name in wanted if name not in stats)
    avoid = hazards.numeric(model, plan, ranges, calibration.unusable(stats, wanted), unseen)
    for tensor, reason in avoid.tensors.items():
        yield Finding(WARNING, "range", tensor, reason, "nothing: it is kept in float")
