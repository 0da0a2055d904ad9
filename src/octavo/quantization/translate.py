"""From the arguments and options of stock to a recipe: one table from option to recipe change.

Nothing is computed here. An option is a row of :data:`OPTIONS`; a key that has no row gets a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.qtypes import UINT8, QType
from octavo.core.recipe import DynamicScheme, Listing, Override, Placement, Recipe, Style, WriteOptions
from octavo.core.scheme import Scheme
from octavo.errors import closest
from octavo.quantization import _overrides
from octavo.quantization._errors import OptionError, QuantizationWarning
from octavo.quantization._overrides import Names
from octavo.quantization._types import CalibrationMethod, QuantType

MS = "com.microsoft"


@dataclass(frozen=True)
class Calibration:
    """How ranges are found, in the words of the calibrators."""

    method: CalibrationMethod = CalibrationMethod.MinMax
    options: Mapping[str, Any] = field(default_factory=dict)
    stride: int | None = None


@dataclass(frozen=True)
class Smoothing:
    """The three options of SmoothQuant, and the step of a recipe that they are."""

    on: bool = False
    alpha: float = 0.5
    fold: bool = True

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps of the recipe."""
        return (f"smoothquant:alpha={self.alpha:g}:fold={'yes' if self.fold else 'no'}",) if self.on else ()


@dataclass(frozen=True)
class Settings:
    """What a call asks for: a recipe, and how to calibrate for it."""

    recipe: Recipe
    calibration: Calibration = field(default_factory=Calibration)
    raw_overrides: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    default_type: int | None = None
    names: Names = field(default_factory=Names)
    smoothing: Smoothing = field(default_factory=Smoothing)

    def but(self, **changes: Any) -> Settings:
        """A copy with the recipe changed."""
        return replace(self, recipe=self.recipe.but(**changes))

    def listing(self, **changes: Any) -> Settings:
        """A copy with the placement changed."""
        return self.but(listing=replace(self.recipe.listing, **changes))

    def writing(self, **changes: Any) -> Settings:
        """A copy with the options of writing changed."""
        return self.but(writing=replace(self.recipe.writing, **changes))

    def activations(self, **changes: Any) -> Settings:
        """A copy with the scheme of activations changed, where they have one."""
        scheme = self.recipe.activations
        return self.but(activations=scheme.but(**changes)) if isinstance(scheme, Scheme) else self

    def weights(self, **changes: Any) -> Settings:
        """A copy with the scheme of weights changed."""
        return self.but(weights=self.recipe.weights.but(**changes))

    def calibrated(self, **options: Any) -> Settings:
        """A copy with options for the calibrator added."""
        merged = {**self.calibration.options, **options}
        return replace(self, calibration=replace(self.calibration, options=merged))


Change = Callable[[Settings, Any], Settings]


@dataclass(frozen=True)
class Option:
    """A key of ``extra_options``: its default, what it is in a recipe, the change it makes, and where."""

    default: Any
    equivalent: str
    change: Change
    styles: tuple[Style, ...] = tuple(Style)  # in the others it has no meaning, and is ignored


_QDQ = (Style.QDQ,)


def _overridden(settings: Settings, raw: Any) -> Settings:
    if not isinstance(raw, Mapping):
        raise OptionError("TensorQuantOverrides is a dict from tensor name to a list of dicts.")
    raw = {settings.names.inner.get(tensor, tensor): found for tensor, found in raw.items()}
    made = _overrides.overrides(raw, settings.names)
    settings = replace(settings, raw_overrides=raw)
    return settings.but(overrides=(*settings.recipe.overrides, *made))


def _nnapi_sigmoid(settings: Settings, on: Any) -> Settings:
    if not on:
        return settings
    fixed = tuple(Override(name, scale=(1.0 / 256.0,), zero_point=(0,)) for name in settings.names.sigmoids)
    return settings.but(overrides=(*settings.recipe.overrides, *fixed))


def _restricted(settings: Settings, on: Any) -> Settings:
    """Only uint8 has zero points that are restricted."""
    scheme = settings.recipe.activations
    if not isinstance(scheme, Scheme) or scheme.qtype != UINT8:
        return settings
    return settings.activations(restricted=bool(on))


def _blocked(settings: Settings, size: Any) -> Settings:
    if not size:
        return settings
    return settings.weights(granularity=PerBlock(int(size))).listing(unfused_blocks=True)


def _strided(settings: Settings, stride: Any) -> Settings:
    if stride is None:
        return settings
    return replace(settings, calibration=replace(settings.calibration, stride=int(stride)))


def _smooth(settings: Settings, **changes: Any) -> Settings:
    """The recipe with the step, where it is requested; only ranges that are measured gain by it."""
    smoothing = replace(settings.smoothing, **changes)
    steps = smoothing.steps if settings.recipe.is_static else ()
    return replace(settings, smoothing=smoothing).but(steps=steps)


def _channel_axes(settings: Settings, axes: Any) -> Settings:
    return settings.listing(
        channel_axes=tuple(
            (op, axis["axis"] if isinstance(axis, Mapping) else axis) for op, axis in axes.items()
        )
    )


def _symmetric_ranges(settings: Settings, on: Any) -> Settings:
    """A range that is symmetric does not do the work of a Relu, which then has to stay."""
    if on is None:
        return settings
    settings = settings.calibrated(symmetric=bool(on))
    return settings.but(fuse_clamps=False) if on else settings


def _moving_average(settings: Settings, on: Any) -> Settings:
    return settings.calibrated(moving_average=bool(on))


OPTIONS: dict[str, Option] = {
    "ActivationSymmetric": Option(
        False, "activations: {symmetric: true}", lambda s, v: s.activations(symmetric=bool(v))
    ),
    "ActivationRestrictedAsymmetric": Option(False, "activations: {restricted: true}", _restricted),
    "WeightSymmetric": Option(
        None,
        "weights: {symmetric: …}",
        lambda s, v: s if v is None else s.weights(symmetric=bool(v)),
    ),
    "MinimumRealRange": Option(
        None,
        "activations and weights: {min_range: …}",
        lambda s, v: s.activations(min_range=v).weights(min_range=v),
    ),
    "TensorQuantOverrides": Option({}, "overrides", _overridden),
    "ForceQuantizeNoInputCheck": Option(
        False, "listing: {move_anything: true}", lambda s, v: s.listing(move_anything=bool(v))
    ),
    "EnableSubgraph": Option(False, "listing: {subgraphs: true}", lambda s, v: s.listing(subgraphs=bool(v))),
    "MatMulConstBOnly": Option(
        False, "listing: {constant_weights_only: true}", lambda s, v: s.listing(constant_weights_only=bool(v))
    ),
    "DefaultTensorType": Option(
        None,
        "none needed: types are inferred",
        lambda s, v: replace(s, default_type=None if v is None else int(v)),
    ),
    "extra.Sigmoid.nnapi": Option(
        False, "overrides of the results of Sigmoid", _nnapi_sigmoid, (Style.QOPERATOR,)
    ),
    "AddQDQPairToWeight": Option(
        False, "writing: {float_weights: true}", lambda s, v: s.writing(float_weights=bool(v)), _QDQ
    ),
    "QuantizeBias": Option(True, "quantize_bias", lambda s, v: s.but(quantize_bias=bool(v)), _QDQ),
    "OpTypesToExcludeOutputQuantization": Option(
        [], "listing: {float_outputs: […]}", lambda s, v: s.listing(float_outputs=tuple(v or ())), _QDQ
    ),
    "DedicatedQDQPair": Option(
        False, "writing: {dedicated: true}", lambda s, v: s.writing(dedicated=bool(v)), _QDQ
    ),
    "QDQOpTypePerChannelSupportToAxis": Option({}, "listing: {channel_axes: …}", _channel_axes, _QDQ),
    "UseQDQContribOps": Option(
        False, "writing: {domain: com.microsoft}", lambda s, v: s.writing(domain=MS) if v else s, _QDQ
    ),
    "QDQKeepRemovableActivations": Option(
        False, "fuse_clamps: false", lambda s, v: s.but(fuse_clamps=not v), _QDQ
    ),
    "QDQDisableWeightAdjustForInt32Bias": Option(
        False, "listing: {room_for_biases: false}", lambda s, v: s.listing(room_for_biases=not v), _QDQ
    ),
    "BlockSize": Option(0, "weights: {granularity: block:SIZE}", _blocked, _QDQ),
    "CalibTensorRangeSymmetric": Option(None, "activations: {symmetric: true}", _symmetric_ranges),
    "CalibMovingAverage": Option(False, "activations: {method: {minmax: {momentum: …}}}", _moving_average),
    "CalibMovingAverageConstant": Option(
        0.01,
        "activations: {method: {minmax: {momentum: …}}}",
        lambda s, v: s.calibrated(averaging_constant=v),
    ),
    "CalibMaxIntermediateOutputs": Option(
        None, "none needed: nothing is kept", lambda s, v: s.calibrated(max_intermediate_outputs=v)
    ),
    "CalibPercentile": Option(
        99.999, "activations: {method: percentile:…}", lambda s, v: s.calibrated(percentile=v)
    ),
    "CalibStridedMinMax": Option(None, "none needed: samples are read one by one", _strided),
    "SmoothQuant": Option(False, "steps: [smoothquant]", lambda s, v: _smooth(s, on=bool(v))),
    "SmoothQuantAlpha": Option(0.5, "steps: [smoothquant:alpha=…]", lambda s, v: _smooth(s, alpha=float(v))),
    "SmoothQuantFolding": Option(True, "steps: [smoothquant:fold=no]", lambda s, v: _smooth(s, fold=bool(v))),
}
"""Every key of ``extra_options``."""


def with_options(settings: Settings, options: Mapping[str, Any] | None) -> Settings:
    """Return the settings under the caller's ``extra_options``, which stay as they are."""
    for key, value in (options or {}).items():
        if key in OPTIONS and settings.recipe.style in OPTIONS[key].styles:
            settings = OPTIONS[key].change(settings, value)
    return settings


def warn_of_unknown(
    options: Mapping[str, Any] | None, known: Iterable[str] = OPTIONS, *, stacklevel: int
) -> None:
    """Warn of each key that no option has; it changes nothing."""
    for key in options or ():
        if key not in known:
            near = closest(str(key), known) or f". The keys are: {', '.join(known)}."
            warnings.warn(
                f"extra_options has no key {key!r}, and it is ignored{near}",
                QuantizationWarning,
                stacklevel=stacklevel + 1,
            )


@dataclass(frozen=True)
class Request:
    """The arguments that static and dynamic quantization share."""

    style: Style = Style.QDQ
    activation_type: QuantType = QuantType.QUInt8
    weight_type: QuantType = QuantType.QInt8
    per_channel: bool = False
    reduce_range: bool = False
    op_types: tuple[str, ...] = ()
    nodes_to_quantize: tuple[str, ...] = ()
    nodes_to_exclude: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None
    constant_weights_only: bool = False  # of MatMul, unless the options say otherwise

    def __post_init__(self) -> None:
        if self.style is Style.INTEGER and "MatMul" in self.op_types:  # a Gemm is written as MatMul and Add
            object.__setattr__(self, "op_types", (*self.op_types, "Gemm"))


NO_NAMES, BY_EXTREMES = Names(), Calibration()


def settings(request: Request, names: Names = NO_NAMES, calibration: Calibration = BY_EXTREMES) -> Settings:
    """Return what a call requests, with its options applied."""
    wanted = tuple(n for n in request.nodes_to_quantize if n in names.nodes)  # as stock does
    nothing = bool(request.nodes_to_quantize) and not wanted
    kind = request.activation_type.qtype
    dynamic = request.style is Style.INTEGER
    recipe = Recipe(
        weights=_weights(request),
        activations=DynamicScheme(UINT8) if dynamic else Scheme(kind, symmetric=kind.is_float),
        style=request.style,
        listing=Listing(
            symmetric_channels=request.style is Style.QDQ, constant_weights_only=request.constant_weights_only
        ),
        placement=Placement.LISTED,
        op_types=() if nothing else request.op_types,
        include=wanted,
        exclude=tuple(n for n in request.nodes_to_exclude if n in names.nodes),
        writing=WriteOptions(explicit=True),
    )
    return with_options(Settings(recipe, calibration, names=names), request.options)


def _weights(request: Request) -> Scheme:
    kind: QType = request.weight_type.qtype
    grain: Granularity = PerChannel() if request.per_channel else PerTensor()
    return Scheme(
        kind,
        grain,
        symmetric=kind.symmetric_by_default,
        reduce_range=request.reduce_range and not kind.is_float,
    )
