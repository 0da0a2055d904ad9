"""``compare``: match both models, run them on the data, find what is to blame, and propose changes."""

from __future__ import annotations

from typing import Protocol, cast

import onnx_ir as ir

from octavo.comparison import data_pass
from octavo.comparison.blame import BAD, blames
from octavo.comparison.causes import Cause, Changes, base_recipe, excess, explain, weight_finding
from octavo.comparison.comparison_result import Comparison, Culprit, OutputComparison, TensorError
from octavo.comparison.data_pass import PassSums, TensorSums
from octavo.comparison.factors import with_factors
from octavo.comparison.match import Matching, Pair, best_match, match, plain
from octavo.comparison.match import prepared as prepared_form
from octavo.comparison.signals import SignalView
from octavo.comparison.weight_errors import WeightError, weight_errors
from octavo.core import scratch
from octavo.core.outputs import note_inputs
from octavo.core.progress import Progress, silent
from octavo.data.feeds import Data
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import meta, query
from octavo.model.runtime.session_inputs import with_mapped_weights

MAX_UNITS = 16  # units whose inputs, weights and result are quantized one by one to find the cause
_FACTORS = (
    "Factors of channels were moved between tensors before the model was quantized, as SmoothQuant and"
    " equalization do; tensors and weights are compared with those of a float model that has them too."
)
_WEAK = 35.0  # dB; the worst is named up to here, where nothing is bad


class HasModel(Protocol):
    """Something that holds a model: the result of ``quantize``."""

    @property
    def model(self) -> ir.Model:
        """Return the model itself."""
        ...


def compare(
    float_model: io.ModelSource,
    quantized: io.ModelSource | HasModel,
    data: Data,
    *,
    samples: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare a float model with its quantized version on data, tensor by tensor.

    ``quantized`` is a model, or the result of ``quantize``; ``data`` fits the float model's inputs. Outputs
    are compared in every sample, tensors inside in the first 8 and then in every tenth.
    """
    tell = progress if progress is not None else silent
    with scratch.folder() as folder:
        tell("match", 0, 1)
        mine = with_mapped_weights(plain(model_of(quantized)), lambda: folder)
        _refuse_quantized(io.load(float_model))
        found, form = best_match(float_model, mine)
        _refuse_float(found.view)
        if not found.pairs:
            raise ModelError(
                f"Nothing in {io.describe(mine)} matches {io.describe(found.float_view.model)};"
                " compare a model with the one that it was quantized from."
            )
        original, same = found.float_view.model, with_factors(found, threads=threads)
        if same is not None:
            found = match(same, mine)
            found.is_rough = True
        seen = data_pass.run_both(
            found,
            data,
            samples=samples,
            threads=threads,
            progress=lambda done, total: tell("compare", done, total),
            original=original if same is not None else None,
        )
        if same is not None:
            seen.notes.append(_FACTORS)
        tell("explain", 0, 1)
        made = _result(float_model, original, found, form, seen)
        return note_inputs(made, {"model": float_model, "quantized": quantized, "data": data})


def model_of(given: io.ModelSource | HasModel) -> io.ModelSource:
    """Return the model itself, of a model or of what holds one."""
    held = getattr(given, "model", None)
    return held if isinstance(held, ir.Model) else cast(io.ModelSource, given)


def _refuse_float(view: SignalView) -> None:
    if not any(view.is_quantized(unit) for unit in view.units):
        raise ModelError(
            f"{io.describe(view.model)} has no quantized operator and no 16-bit float to compare; give the"
            " float model first, then the other one."
        )
    for unit in view.units:
        if any(query.element_type(value) is ir.DataType.BFLOAT16 for value in unit.outputs):
            raise ModelError(
                f"{io.describe(view.model)} computes in bfloat16 ({unit.node.op_type} {unit.name!r}), for"
                " which ONNX Runtime's CPU has no kernels; compare one stored in it (--float bf16:storage)."
            )


def _refuse_quantized(model: ir.Model) -> None:
    if query.classify(model).quantized:
        raise ModelError(
            f"{io.describe(model)}, the model to compare with, is quantized itself, so that its tensors are"
            " integers of other scales. Compare each quantized model with the float model that it was made"
            " from; 'octavo evaluate FIRST SECOND --task agreement' compares the outputs of both."
        )


def _result(
    source: io.ModelSource, original: ir.Model, found: Matching, form: str, seen: PassSums
) -> Comparison:
    weights = weight_errors(found)
    made_by = meta.recorded_recipe(found.view.model)
    base = made_by if made_by is not None else base_recipe(found.view.model, weights.values())
    prepared = prepared_form(source, 21) if query.opset(original) < 21 else original
    culprits = _culprits(found, seen, weights, Changes(prepared, base))
    tensors = tuple(_tensor(pair, watch) for pair, watch in seen.pairs.items())
    outputs = tuple(
        OutputComparison(name, w.accumulated.errors(w.power), w.execution.errors(w.executed), w.interval)
        for name, w in seen.outputs.items()
        if w.power.count
    )
    names = [io.describe(view.model) for view in (found.float_view, found.view)]
    return Comparison(
        float_model=names[0],
        quantized=names[1] if names[1] != names[0] else f"{names[1]}, quantized",  # one that has no file yet
        form=form,
        samples=seen.samples,
        looked=seen.looked,
        matched=len(found.pairs),
        unmatched=tuple(unit.name for unit in found.unmatched),
        outputs=outputs,
        tensors=tensors,
        weights=tuple(weights.values()),
        culprits=culprits,
        base=base,
        is_recorded=made_by is not None,
        notes=tuple(_notes(found, seen)),
    )


def _tensor(pair: Pair, watch: TensorSums) -> TensorError:
    clip = watch.clipping
    return TensorError(
        name=pair.target.name or "",
        twin=pair.twin.name or "",
        node=pair.float_unit.name,
        op_type=pair.float_unit.node.op_type,
        local=watch.local.errors(watch.power),
        accumulated=watch.accumulated.errors(watch.power),
        execution=watch.execution.errors(watch.executed),
        low=watch.power.low,
        high=watch.power.high,
        clipped=clip.share if clip is not None else None,
        rounding=clip.rounding if clip is not None else None,
        used=clip.used(watch.power) if clip is not None else None,
    )


def _culprits(
    found: Matching, seen: PassSums, weights: dict[tuple[Pair, int], WeightError], changes: Changes
) -> tuple[Culprit, ...]:
    """Return the tensors that cause the worst results, the worst first.

    What better parameters of the same kind would gain counts on top: a wrong scale comes before too few bits.
    """
    ranked: list[tuple[float, float, Cause]] = []
    gains = {pair: excess(watch) for pair, watch in seen.pairs.items()}
    for (pair, _), weight in weights.items():
        gains[pair] = max(gains.get(pair, 0.0), weight.excess)
    for pair, blame in blames(found, seen, gains, MAX_UNITS).items():
        watch = seen.pairs[pair]
        local = watch.local.errors(watch.power)
        if local is not None:
            finding = explain(blame, found, seen, weights)
            ranked.append((local.sqnr - finding.excess, local.sqnr, finding))
    for (pair, _), weight in weights.items():
        seen_there = seen.pairs.get(pair)
        if (seen_there is None or not seen_there.local.count) and weight.errors.sqnr < BAD:
            finding = weight_finding(weight, pair.float_unit)
            ranked.append((weight.errors.sqnr - weight.excess, weight.errors.sqnr, finding))
    ranked.sort(key=lambda item: item[0])
    best: dict[str, Culprit] = {}
    for score, sqnr, finding in ranked:
        if finding.tensor not in best and score < (BAD if best else _WEAK):
            best[finding.tensor] = _culprit(sqnr, finding, changes)
    return tuple(best.values())


def _culprit(sqnr: float, finding: Cause, changes: Changes) -> Culprit:
    return Culprit(
        tensor=finding.tensor,
        kind=finding.kind,
        node=finding.reader.name,
        op_type=finding.reader.node.op_type,
        sqnr=sqnr,
        cause=finding.cause,
        text=finding.text,
        changes=changes.for_finding(finding),
    )


def _notes(found: Matching, seen: PassSums) -> list[str]:
    notes = list(seen.notes)
    if found.unmatched:
        kinds = sorted({unit.kind for unit in found.unmatched})
        notes.append(
            f"{len(found.unmatched)} quantized operators ({', '.join(kinds)}) have no counterpart in the"
            " float model."
        )
    inner = sum(not pair.is_main for pair in seen.pairs)
    if inner:
        notes.append(f"{inner} operators inside subgraphs have no local error: they are not run alone.")
    for name, sums in seen.outputs.items():
        execution = sums.execution.errors(sums.executed)
        if execution is not None and sums.is_changed_by_runtime:
            first = next(
                (pair.target.name for pair, w in seen.pairs.items() if w.is_changed_by_runtime), None
            )
            where = f"; the first tensor that differs so much is {first!r}" if first is not None else ""
            notes.append(
                f"The runtime's optimizations change the output {name!r} by more than quantization does:"
                f" {execution.sqnr:.1f} dB between optimized and unoptimized execution{where}."
            )
    return notes
