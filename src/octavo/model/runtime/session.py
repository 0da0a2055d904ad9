"""The runtime: the only place that imports ONNX Runtime, and only when it is first needed.

A model in memory is given to the runtime without copying its mapped weights: it gets the structure as bytes,
in which those weights are references to the file they lie in, and maps that file itself.

The runtime reports home from version 1.29 on, about models too, and keeps files for that in the user's home.
It is told not to, unless ``ORT_DISABLE_TELEMETRY`` says otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from octavo.core import scratch
from octavo.core.cpu import checked_threads
from octavo.errors import DataError, ModelError
from octavo.model.files.reading import written_message
from octavo.model.graph import meta
from octavo.model.graph.meta import describe
from octavo.model.runtime import bfloat16

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it looks there once, when it is loaded

_NEWEST_IR, _NEWEST_OPSET = 13, 26  # where probing starts

_NUMPY: dict[str, Any] = {
    "float": np.float32,
    "float16": np.float16,
    "double": np.float64,
    "bfloat16": ml_dtypes.bfloat16,
    "bool": np.bool_,
    "string": np.object_,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def _ort() -> Any:
    import onnxruntime

    return onnxruntime


@dataclass(frozen=True)
class InputSpec:
    """One input of a model: a name, an element type, and dimensions that may be symbols or unknown."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]


class Session:
    """A model that the runtime has loaded."""

    def __init__(self, inner: Any, name: str, keep: Sequence[object] = ()) -> None:
        self._inner = inner
        self._name = name
        self._keep = keep  # a temporary folder lives as long as the session that reads from it
        self.inputs: list[InputSpec] = [_spec(argument) for argument in inner.get_inputs()]
        self.output_names: list[str] = [argument.name for argument in inner.get_outputs()]
        self._halves = any(argument.type == "tensor(bfloat16)" for argument in inner.get_outputs())

    @classmethod
    def open(
        cls,
        model: ir.Model | str | Path | bytes,
        *,
        providers: Sequence[str] | None = None,
        threads: int | None = None,
        optimize: bool = True,
        custom_ops: Sequence[str | Path] = (),
        outputs: Iterable[str] | None = None,
        prepack: bool = True,
        config: Mapping[str, str] | None = None,
        profile: Path | None = None,
        optimized_to: Path | None = None,
        native: Any = None,
        trusted: bool = False,
    ) -> Session:
        """Load a model into the runtime.

        A file is first looked through (:func:`octavo.model.files.io.load`), as the runtime has no
        bounds of its own; ``trusted`` says that this was done, or that Octavo has written the file.
        ``outputs`` names tensors to return instead of the model's own outputs; it needs a model in memory.
        ``prepack=False`` keeps large weights in their file at the price of slower matrix products, ``config``
        are further entries of the session's configuration. ``profile`` is the beginning of the file in which
        the runtime notes how long each node takes (:meth:`end_profile`), ``optimized_to`` a file for the
        graph as it has rewritten it. ``native`` are the runtime's own options, instead of those made from
        the others.
        """
        options = native if native is not None else _options(threads, optimize, custom_ops)
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if optimized_to is not None:
            options.optimized_model_filepath = str(optimized_to)
        entries = dict(config or {})
        if not prepack:
            entries["session.disable_prepacking"] = "1"
        keep: list[object] = []
        name, source = _source(model, entries, keep, outputs, trusted)
        return cls(_opened(name, source, options, entries, providers), name, keep)

    @property
    def native(self) -> Any:
        """Return the runtime's own object."""
        return self._inner

    def run(self, feeds: Feeds, output_names: Sequence[str] | None = None) -> dict[str, Array]:
        """Run the model once; returns outputs by name: those that are named, or all that are arrays."""
        names = list(output_names) if output_names is not None else self.output_names
        given = {spec.name: self._fit(spec, feeds) for spec in self.inputs if spec.name in feeds}
        unknown = set(feeds) - set(given)
        missing = [spec.name for spec in self.inputs if spec.name not in given]
        if unknown or missing:
            raise DataError(
                f"{self._name} has the inputs {[spec.name for spec in self.inputs]}; "
                f"missing: {missing or 'none'}, unknown: {sorted(unknown) or 'none'}."
            )
        with _runtime_errors(self._name, "failed in onnxruntime"):
            if self._halves:
                values = bfloat16.run(_ort(), self._inner, names, given)
            else:
                values = self._inner.run(names, given)
        found = dict(zip(names, values, strict=True))
        if output_names is not None:
            return found
        return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}

    def end_profile(self) -> Path:
        """Write the profile that :meth:`open` was told to; returns its file."""
        return Path(self._inner.end_profiling())

    def _fit(self, spec: InputSpec, feeds: Feeds) -> Any:
        array = np.asarray(feeds[spec.name])
        if spec.dtype != array.dtype and spec.dtype.kind != "O":
            raise DataError(
                f"The input {spec.name!r} of {self._name} takes {spec.dtype}, and {array.dtype} was given; "
                f"convert it with .astype({str(spec.dtype)!r})."
            )
        if len(spec.shape) != array.ndim and spec.shape:
            raise DataError(
                f"The input {spec.name!r} of {self._name} has {len(spec.shape)} dimensions "
                f"{list(spec.shape)}, and an array of shape {array.shape} was given."
            )
        return bfloat16.value_of(_ort(), array) if array.dtype == ml_dtypes.bfloat16 else array


def _source(
    model: ir.Model | str | Path | bytes,
    entries: dict[str, str],
    keep: list[object],
    outputs: Iterable[str] | None,
    trusted: bool,
) -> tuple[str, str | bytes]:
    """Return the name of a model for messages, and what the runtime reads it from: a path or bytes."""
    if isinstance(model, ir.Model):
        from octavo.model.runtime.session_inputs import hand_over

        return describe(model), hand_over(model, entries, keep, outputs)
    if outputs is not None:
        raise ModelError("Other outputs can be requested only of a model in memory; load() it first.")
    if isinstance(model, bytes):
        return "the model in memory", model
    if not trusted:
        from octavo.model.files.io import load

        load(model)
    path = str(model)
    if not path.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in path):
        raise ModelError(f"onnxruntime can't open {path!r}, whose name is not in UTF-8; rename the file.")
    return path, path


def _opened(
    name: str, source: str | bytes, options: Any, entries: Mapping[str, str], providers: Sequence[str] | None
) -> Any:
    """Return a session of the runtime's own."""
    for key, entry in entries.items():
        options.add_session_config_entry(key, entry)
    with _runtime_errors(name, "can't be loaded by onnxruntime"):
        return _ort().InferenceSession(source, options, providers=_providers(providers))


def _spec(argument: Any) -> InputSpec:
    text = str(argument.type)
    element = text.removeprefix("tensor(").removesuffix(")")
    if not text.startswith("tensor(") or element not in _NUMPY:
        raise ModelError(
            f"The input {argument.name!r} is a {text}, which can't be fed; only plain tensors can."
        )
    shape = tuple(dim if isinstance(dim, int | str) else None for dim in argument.shape)
    return InputSpec(argument.name, np.dtype(_NUMPY[element]), shape)


def _options(threads: int | None, optimize: bool, custom_ops: Sequence[str | Path]) -> Any:
    ort = _ort()
    options = ort.SessionOptions()
    options.log_severity_level = 4  # failures are raised
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    if checked_threads(threads) is not None:
        options.intra_op_num_threads = threads
    for library in custom_ops:
        try:
            options.register_custom_ops_library(str(library))
        except Exception as error:
            raise ModelError(
                f"The custom operator library {library} can't be loaded: {_reason(error)}"
            ) from error
    return options


def available_providers() -> list[str]:
    """Return the execution providers of the installed runtime."""
    return list(_ort().get_available_providers())


def _providers(asked: Sequence[str] | None) -> list[str]:
    if asked is None:
        return ["CPUExecutionProvider"]
    available = available_providers()
    absent = [name for name in asked if name not in available]
    if absent:
        raise ModelError(
            f"The execution provider {absent[0]!r} is not in the installed onnxruntime, which has "
            f"{', '.join(available)}; install the build that has it."
        )
    return list(asked)


@contextlib.contextmanager
def _runtime_errors(name: str, what: str) -> Any:
    try:
        yield
    except (ModelError, DataError, KeyboardInterrupt):
        raise
    except Exception as error:  # the runtime's exceptions share no base class
        raise ModelError(f"{name} {what}: {_reason(error)} {_way_out(str(error))}".rstrip()) from error


def _reason(error: BaseException) -> str:
    """Return the first line of a runtime message, less its prefix."""
    line = str(error).strip().split("\n")[0]
    return line.split(" : ", 3)[-1] if line.startswith("[ONNXRuntimeError]") else line


_WAYS_OUT = {
    "No Op registered for": "If it is a custom operator, pass its library as custom_ops.",
    "is not a registered function/op": "If it is a custom operator, pass its library as custom_ops.",
    "NOT_IMPLEMENTED": "The runtime has no kernel for this operator and type; export the model in float32.",
    "No corresponding Numpy type": "Cast that output to a type that numpy has, for example float32.",
    "indices element out of data bounds": "A token lies beyond the model's table: give its own tokenizer.",
    "opset": "Convert the model to an opset that this runtime knows.",
    "IR version": "Save the model with a lower IR version, or install a newer onnxruntime.",
}


def _way_out(message: str) -> str:
    return next((advice for sign, advice in _WAYS_OUT.items() if sign in message), "")


def _tiny(ir_version: int, opset: int) -> bytes:
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "probe",
        [value("x", onnx.TensorProto.FLOAT, [1])],
        [value("y", onnx.TensorProto.FLOAT, [1])],
    )
    imports = [onnx.helper.make_opsetid("", opset)]
    return bytes(
        onnx.helper.make_model(graph, ir_version=ir_version, opset_imports=imports).SerializeToString()
    )


def _loads(ir_version: int, opset: int) -> bool:
    try:
        _ort().InferenceSession(
            _tiny(ir_version, opset), _options(1, False, ()), providers=["CPUExecutionProvider"]
        )
    except Exception:  # any refusal means no
        return False
    return True


def _limit(start: int, loads: Any) -> int:
    while loads(start + 1):
        start += 1
    while start > 1 and not loads(start):
        start -= 1
    return start


@functools.cache
def runtime_ir_limit() -> int:
    """Return the newest ONNX IR version that the installed runtime loads."""
    return _limit(_NEWEST_IR, lambda version: _loads(version, 13))


@functools.cache
def runtime_opset_limit() -> int:
    """Return the newest default opset that the installed runtime loads."""
    return _limit(_NEWEST_OPSET, lambda opset: _loads(8, opset))


@dataclass(frozen=True)
class Kernel:
    """One CPU kernel: the opset versions it serves and the element types of its type variables."""

    since: int
    until: int
    types: Mapping[str, tuple[str, ...]]


@functools.cache
def kernels() -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
    """Return the CPU kernels of the installed runtime by ``(domain, op type)``."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], list[Kernel]] = {}
    for entry in state.get_all_opkernel_def():
        if entry.provider != "CPUExecutionProvider":
            continue
        since, until = entry.version_range
        constraints = {name: tuple(kinds) for name, kinds in entry.type_constraints.items()}
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        found.setdefault((domain, entry.op_name), []).append(Kernel(since, until, constraints))
    return {key: tuple(entries) for key, entries in found.items()}


NO_SPINNING = {"session.intra_op.allow_spinning": "0"}  # threads that wait for work sleep: for a run or two


def optimized(model: ir.Model | str | Path, level: str = "all") -> ir.Model:
    """Return the graph as the runtime rewrites it at a level: basic, extended, layout or all."""
    from octavo.model.files.io import load

    levels = {"basic": "BASIC", "extended": "EXTENDED", "layout": "LAYOUT", "all": "ALL"}
    if level not in levels:
        raise ModelError(f"There is no optimization level {level!r}; there are {', '.join(levels)}.")
    with scratch.folder() as folder:
        target = Path(folder) / "optimized.onnx"
        options = _options(None, True, ())
        options.graph_optimization_level = getattr(
            _ort().GraphOptimizationLevel, f"ORT_ENABLE_{levels[level]}"
        )
        options.optimized_model_filepath = str(target)
        entries, keep = weights_beside(1 << 20), list[object]()
        _opened(*_source(model, entries, keep, None, trusted=False), options, entries, None)
        return _in_memory(load(target))


def weights_beside(least: int) -> dict[str, str]:
    """Return the configuration that writes weights of so many bytes beside the optimized graph."""
    prefix = "session.optimized_model_external_initializers_"
    return {f"{prefix}file_name": "weights.bin", f"{prefix}min_size_in_bytes": str(least)}


def _in_memory(model: ir.Model) -> ir.Model:
    """Read all weights, so that the files they came from may go."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and not isinstance(tensor, ir.StringTensor):
            value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=value.name)
    meta.annotate(model, path=None, files=frozenset())
    return model


def symbolic_shapes() -> None:
    """Infer shapes symbolically from one file to another: ``python -c … <source> <target> [<settings>]``."""
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    source, target, *more = sys.argv[1:]
    settings = {"auto_merge": True, "guess_output_rank": False, **(json.loads(more[0]) if more else {})}
    proto = written_message(Path(source))
    inferred = SymbolicShapeInference.infer_shapes(proto, **settings)
    if inferred is None:
        raise SystemExit("the inference is incomplete")
    Path(target).write_bytes(inferred.SerializeToString())
