"""One pass over the data: the float model, the quantized one, and each quantized unit alone, side by side.

Only sums are kept, so that memory does not grow with the data. Outputs are compared in every sample; what is
inside the models in the first ``FIRST`` samples and then in one of ``EVERY``, since looking costs four times
what running does. The first ones also go through the quantized model without the runtime's optimizations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.comparison import replay
from octavo.comparison.constant_values import Array, numbers
from octavo.comparison.distances import Clipping, Gap, Power, Row, row
from octavo.comparison.match import Matching, Pair
from octavo.comparison.replay import Replay
from octavo.comparison.signals import ScaleAndZero, SignalView, half_type
from octavo.comparison.tensor_session import TensorSession, fitting, open_returning
from octavo.core.intervals import sqnr_interval
from octavo.core.qtypes import from_onnx
from octavo.data.feeds import Data, Feeds
from octavo.errors import ModelError
from octavo.model.graph import query
from octavo.model.runtime.session import Session
from octavo.model.runtime.session_inputs import open_message

Progress = Callable[[int, int | None], None]
FIRST, EVERY = 8, 10  # samples whose inner tensors are looked at
CHECKED = 2  # samples that are run without the runtime's optimizations too
_RUNTIME_FACTOR = 4.0  # times the energy of the quantization error: 6 dB
KEPT = 2  # samples that are kept, to analyse the worst units


@dataclass
class TensorSums:
    """What is added up for one tensor."""

    power: Power = field(default_factory=Power)
    local: Gap = field(default_factory=Gap)
    accumulated: Gap = field(default_factory=Gap)
    execution: Gap = field(default_factory=Gap)  # optimized against unoptimized
    executed: Power = field(default_factory=Power)
    unoptimized: Gap = field(default_factory=Gap)  # unoptimized against float, in the same samples
    clipping: Clipping | None = None
    half: str | None = None  # the name of the 16-bit float type that the quantized model has it in
    by_sample: list[tuple[float, float]] = field(default_factory=list)  # energies of signal and noise

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the accumulated SQNR, over resampled samples."""
        energies = np.array(self.by_sample, np.float64).reshape(-1, 2)
        return sqnr_interval(energies[:, :1], energies[:, 1:])

    @property
    def is_changed_by_runtime(self) -> bool:
        """Whether the runtime's optimizations change more than the rounding of values does.

        Two correct kernels may round a value to neighbouring integers, and later layers carry that on; the
        difference then stays about as large as the quantization error itself.
        """
        return self.execution.noise > _RUNTIME_FACTOR * self.unoptimized.noise


@dataclass
class PassSums:
    """The sums of one pass over the data."""

    pairs: dict[Pair, TensorSums]
    inputs: dict[ir.Value, TensorSums]  # inputs of the float model that are quantized as they come in
    outputs: dict[str, TensorSums]
    samples: int = 0
    looked: int = 0
    checked: int = 0
    kept: list[dict[str, Array]] = field(default_factory=list)
    float_model: TensorSession | None = None
    replay: Replay | None = None
    alone: Session | None = None
    notes: list[str] = field(default_factory=list)


def run_both(
    found: Matching,
    data: Data,
    *,
    samples: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    original: ir.Model | None = None,
) -> PassSums:
    """Run both models on the data; where the float model stands for an ``original``, that gives outputs."""
    seen = _prepare(found)
    sessions = _Sessions(found, seen, threads, original)
    feeds = Feeds(data, sessions.plain.session.inputs, limit=samples)
    for feed in itertools.islice(feeds, samples):
        sessions.sample(feed, seen)
        if progress is not None:
            progress(seen.samples, feeds.length)
    seen.float_model, seen.alone = sessions.plain, sessions.alone
    return seen


def _prepare(found: Matching) -> PassSums:
    q = found.view
    pairs = {
        p: TensorSums(clipping=clipping(q, p.twin), half=_half(p.twin))
        for p in found.pairs
        if _counts(found, p)
    }
    inputs: dict[ir.Value, TensorSums] = {}
    for value in q.model.graph.inputs:
        clip = clipping(q, value)
        source = found.signals.get(q.signal(value))
        if clip is not None and source is not None:
            inputs[source] = TensorSums(clipping=clip)
    outputs = {v.name or "": TensorSums() for v in found.float_view.model.graph.outputs}
    return PassSums(pairs, inputs, outputs)


def _counts(found: Matching, pair: Pair) -> bool:
    """Whether a pair is worth looking at: quantization touches it, and it gives floats."""
    return found.view.is_quantized(pair.unit) and query.is_float(pair.target)


def _half(value: ir.Value) -> str | None:
    kind = half_type(value)
    return kind.name.lower() if kind is not None else None


def clipping(view: SignalView, value: ir.Value) -> Clipping | None:
    """Return the fixed range that a signal is quantized to, if it is one range for the whole tensor."""
    found = view.quantization(view.signal(value))
    scale = numbers(found.scale) if found is not None else None
    if (
        found is None
        or scale is None
        or scale.size != 1
        or not np.isfinite(scale).all()
        or (scale <= 0).any()
    ):
        return None
    return _range(found, float(scale.reshape(-1)[0]))


def _range(found: ScaleAndZero, scale: float) -> Clipping | None:
    zero = numbers(found.zero)
    element = query.element_type(found.zero) if found.zero is not None else ir.DataType.UINT8
    kind = from_onnx(int(element)) if element is not None else None
    if kind is None or kind.is_float:
        return None
    centre = float(zero.reshape(-1)[0]) if zero is not None and zero.size else 0.0
    return Clipping((kind.qmin - centre) * scale, (kind.qmax - centre) * scale, scale)


class _Sessions:
    """The float model, the quantized one in two ways, and the replay."""

    def __init__(
        self, found: Matching, seen: PassSums, threads: int | None, original: ir.Model | None
    ) -> None:
        f, q = found.float_view, found.view
        self.found, self.is_original = found, original is None
        self.replay = replay.build(found, list(seen.pairs))
        wanted = [f.signal(p.target) for p in seen.pairs] + list(self.replay.inputs.values())
        self.targets = {p: f.signal(p.target) for p in seen.pairs}
        self.plain = open_returning(f.model, wanted, {}, threads=threads)
        self.forms = {p: q.seen(q.signal(p.twin)) for p in seen.pairs}
        integers = {v: q.numbers[v] for v in self.forms.values() if v in q.numbers}
        self.quantized = open_returning(q.model, self.forms.values(), integers, threads=threads)
        self.unoptimized: TensorSession | None = open_returning(
            q.model, self.forms.values(), integers, threads=threads, optimize=False
        )
        self.float_used = Session.open(original if original is not None else f.model, threads=threads)
        self.as_used = Session.open(q.model, threads=threads)
        self.alone = self._alone(seen, threads)
        seen.replay = self.replay

    def _alone(self, seen: PassSums, threads: int | None) -> Session | None:
        if not self.replay.outputs:
            return None
        try:
            return open_message(self.replay.proto, self.found.view.model, self.replay.used, threads=threads)
        except ModelError as error:
            seen.notes.append(f"Local errors are not known: the units can't be run by themselves ({error}).")
            return None

    def sample(self, feed: dict[str, Array], seen: PassSums) -> None:
        """Run one sample through all models, and add it to the sums."""
        given = fitting(feed, self.as_used.inputs)
        used = self.as_used.run(given)
        looked = seen.samples < FIRST or seen.samples % EVERY == 0
        inside = self._look(feed, given, used, seen) if looked else None
        plain = inside if inside is not None and self.is_original else self.float_used.run(feed)
        for name, other in _outputs(self.found).items():
            if plain[name].dtype.kind in "fV":
                _add_output(seen.outputs[name], row(plain[name]), row(used[other]))
        if len(seen.kept) < KEPT:
            seen.kept.append(dict(feed))
        seen.samples += 1

    def _look(
        self, feed: dict[str, Array], given: dict[str, Array], used: dict[str, Array], seen: PassSums
    ) -> dict[str, Array]:
        """Compare what is inside; returns what the float model gave."""
        plain, mine = self.plain.run(feed), self.quantized.run(given)
        local = self.alone.run(self._operands(plain)) if self.alone is not None else {}
        for pair, watch in seen.pairs.items():
            x = _get(self.plain, self.targets[pair], plain)
            if x is None:
                continue
            _note(watch, x)
            y = _get(self.quantized, self.forms[pair], mine)
            if y is not None:
                watch.accumulated.add(x, y)
            alone = local.get(self.replay.outputs.get(pair, ""))
            if alone is not None:
                watch.local.add(x, row(alone))
        for value, watch in seen.inputs.items():
            _note(watch, row(feed[value.name or ""]))
        if seen.samples < CHECKED:
            self._check(given, mine, used, plain, seen)
        else:
            self.unoptimized = None
        seen.looked += 1
        return plain

    def _operands(self, plain: Mapping[str, Array]) -> dict[str, Array]:
        """Return what the replay is fed with."""
        specs = self.alone.inputs if self.alone is not None else []
        found: dict[str, Array] = {}
        for spec in specs:
            array = plain[self.plain.names.get(self.replay.inputs[spec.name], "")]
            found[spec.name] = array if array.dtype == spec.dtype else array.astype(spec.dtype)
        return found

    def _check(
        self,
        given: dict[str, Array],
        mine: dict[str, Array],
        used: dict[str, Array],
        plain: dict[str, Array],
        seen: PassSums,
    ) -> None:
        """Run the sample without optimizations; outputs are those of the model as it is used."""
        if self.unoptimized is None:
            return
        slow = self.unoptimized.run(given)
        for pair, watch in seen.pairs.items():
            x, y = (
                _get(self.unoptimized, self.forms[pair], slow),
                _get(self.quantized, self.forms[pair], mine),
            )
            if x is not None and y is not None:
                watch.executed.add(x)
                watch.execution.add(x, y)
                expected = _get(self.plain, self.targets[pair], plain)
                if expected is not None:
                    watch.unoptimized.add(expected, x)
        for name, other in _outputs(self.found).items():
            if used[other].dtype.kind in "fV":
                x = row(slow[other])
                seen.outputs[name].executed.add(x)
                seen.outputs[name].execution.add(x, row(used[other]))
                seen.outputs[name].unoptimized.add(row(plain[name]), x)
        seen.checked += 1


def _add_output(watch: TensorSums, x: Row, y: Row) -> None:
    """Take in an output of one sample, and keep its energies for the interval."""
    before = watch.power.energy, watch.accumulated.noise
    watch.power.add(x)
    watch.accumulated.add(x, y)
    watch.by_sample.append((watch.power.energy - before[0], watch.accumulated.noise - before[1]))


def _note(watch: TensorSums, x: Row) -> None:
    low, high = watch.power.add(x)
    if watch.clipping is not None:
        watch.clipping.add(x, low, high)


def _outputs(found: Matching) -> dict[str, str]:
    """Return the float model's outputs that are arrays, and those of the quantized model for them."""

    def names(model: ir.Model) -> list[str]:
        return [
            v.name or "" for v in model.graph.outputs if v.type is None or isinstance(v.type, ir.TensorType)
        ]

    plain, mine = names(found.float_view.model), names(found.view.model)
    return {n: n if n in mine else mine[i] for i, n in enumerate(plain) if n in mine or i < len(mine)}


def _get(where: TensorSession, value: ir.Value, results: Mapping[str, Array]) -> Row | None:
    found = results.get(where.names.get(value, ""))
    return row(found) if found is not None and found.dtype.kind in "fV" else None
