"""Static quantization of a model folder from the command line::

    python -m octavo.quantization.static_quantize_runner -i resnet/model.onnx -o resnet/model_quant.onnx

The calibration data are the folders ``test_data_set_N`` beside the model, each with a file ``input_K.pb`` for
each input. Flags may stand alone or be followed by True or False.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from octavo.core.files import read_json
from octavo.data.readers.tensor_files import read_tensor
from octavo.errors import DataError
from octavo.model.files import io
from octavo.quantization._command import add_flag, exit_code
from octavo.quantization._errors import OptionError
from octavo.quantization._names import elsewhere
from octavo.quantization._readers import CalibrationDataReader
from octavo.quantization._types import CalibrationMethod, QuantFormat, QuantType

__all__ = ["OnnxModelCalibrationDataReader", "get_tensor_quant_overrides", "main", "parse_arguments"]

_MOST_BYTES = 1 << 28  # of a file of overrides
_TYPES = {kind.name.lower(): kind for kind in QuantType}
_METHODS = {method.name.lower(): method for method in CalibrationMethod}
_FORMATS = {style.name.lower(): style for style in QuantFormat}


class OnnxModelCalibrationDataReader(CalibrationDataReader):
    """The samples in ``test_data_set_N/input_K.pb`` beside a model, in the order of their numbers."""

    def __init__(self, model_path: str | Path) -> None:
        folder = Path(model_path).resolve().parent
        self.model_dir = folder
        graph = io.load(model_path).graph
        names = [value.name or "" for value in graph.inputs]
        self.input_names = [name for name in names if name not in graph.initializers]
        self._folders = sorted(folder.glob("test_data_set_*"), key=_number)
        if not self._folders:
            raise DataError(
                f"There is no folder test_data_set_N in {folder}; put the calibration data there."
            )
        self._next, self._end = 0, len(self._folders)

    def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
        """Return the next sample, or None."""
        if self._next >= self._end:
            return None
        folder = self._folders[self._next]
        self._next += 1
        return {
            name: self.read_onnx_pb_data(folder / f"input_{index}.pb")
            for index, name in enumerate(self.input_names)
        }

    @staticmethod
    def read_onnx_pb_data(file_pb: str | Path) -> npt.NDArray[Any]:
        """Return the tensor of a file."""
        return read_tensor(Path(file_pb))[1]

    def __len__(self) -> int:
        return len(self._folders)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Give the samples of this range from now on."""
        self._next, self._end = start_index, min(end_index, len(self._folders))


def _number(folder: Path) -> tuple[int, str]:
    digits = re.search(r"(\d+)$", folder.name)
    return (int(digits[1]) if digits else -1, folder.name)


def get_tensor_quant_overrides(file: str | Path | None) -> dict[str, list[dict[str, Any]]]:
    """Overrides from JSON, ``{tensor: [{"scale": …, "zero_point": …}, …]}``; types are given by name."""
    if file is None:
        return {}
    try:
        content = read_json(file, _MOST_BYTES)
    except OSError as error:
        raise OptionError(f"The overrides {file} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise OptionError(f"The overrides {file} are not JSON: {error}.") from error
    if not isinstance(content, dict) or not all(_is_list_of_objects(entry) for entry in content.values()):
        raise OptionError(f'The overrides {file} have another form than {{"tensor": [{{…}}, …]}}.')
    return {name: [_override(name, entry) for entry in entries] for name, entries in content.items()}


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def _override(tensor: str, entry: dict[str, Any]) -> dict[str, Any]:
    found = dict(entry)
    if "quant_type" in found:
        found["quant_type"] = _type(tensor, found["quant_type"])
    if isinstance(found.get("convert"), dict):
        found["convert"] = _override(tensor, found["convert"])
    if "recv_nodes" in found:
        found["recv_nodes"] = set(found["recv_nodes"])
    return found


def _type(tensor: str, name: Any) -> QuantType:
    kind = _TYPES.get(str(name).lower())
    if kind is None:
        raise OptionError(
            f"{name!r}, the type of {tensor!r}, does not exist; choose one of {', '.join(_TYPES)}."
        )
    return kind


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = argparse.ArgumentParser(
        prog="python -m octavo.quantization.static_quantize_runner",
        description="Quantize a model statically; the data are test_data_set_N/input_K.pb beside it.",
    )
    add = made.add_argument
    add("-i", "--input_model_path", required=True, metavar="MODEL", help="the float model")
    add("-o", "--output_quantized_model_path", required=True, metavar="MODEL", help="where the result goes")
    add("--activation_type", choices=list(_TYPES), default="quint8", help="the type of activations")
    add("--weight_type", choices=list(_TYPES), default="qint8", help="the type of weights")
    add("--calibration_method", choices=list(_METHODS), default="minmax", help="how ranges are found")
    add("--quant_format", choices=list(_FORMATS), default="qdq", help="how the result is written")
    add("--minimum_real_range", type=float, default=0.0001, help="the smallest width of a range")
    add("--nodes_to_quantize", nargs="+", metavar="NODE", help="quantize these only")
    add("--nodes_to_exclude", nargs="+", metavar="NODE", help="leave these float")
    add(
        "--op_types_to_exclude_output_quantization",
        nargs="+",
        default=[],
        metavar="OP",
        help="leave the outputs of these operators float",
    )
    add(
        "--op_per_channel_axis",
        nargs=2,
        action="append",
        default=[],
        metavar=("OP", "AXIS"),
        help="the channel axis of an operator's weight; may be repeated",
    )
    add("--tensor_quant_overrides", metavar="FILE", help="settings of single tensors, as JSON")
    for name, (_, text) in _FLAGS.items():
        add_flag(made, f"--{name}", help=text)
    add_flag(made, "--per_channel", help="a scale for each channel of a weight")
    add_flag(made, "--calib_tensor_range_symmetric", help="ranges from minus to plus", default=None)
    add_flag(made, "--quantize_bias", help="int32 biases (the default)", default=True)
    add_flag(made, "--disable_quantize_bias", help="leave biases float")
    return made


_FLAGS: dict[str, tuple[str, str]] = {
    "enable_subgraph": ("EnableSubgraph", "quantize inside If, Loop and Scan"),
    "force_quantize_no_input_check": (
        "ForceQuantizeNoInputCheck",
        "quantize data movement also where its input is float",
    ),
    "matmul_const_b_only": ("MatMulConstBOnly", "quantize MatMul only where B is constant"),
    "add_qdq_pair_to_weight": ("AddQDQPairToWeight", "keep weights float, with a Q/DQ pair"),
    "dedicated_qdq_pair": ("DedicatedQDQPair", "a Q/DQ pair for each consumer"),
    "calib_moving_average": ("CalibMovingAverage", "a moving average of minimum and maximum"),
    "use_qdq_contrib_ops": ("UseQDQContribOps", "write Q/DQ in the domain com.microsoft"),
    "qdq_keep_removable_activations": ("QDQKeepRemovableActivations", "keep Relu and Clip"),
    "qdq_disable_weight_adjust_for_int32_bias": (
        "QDQDisableWeightAdjustForInt32Bias",
        "do not enlarge a weight's scale for its bias",
    ),
}


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line."""
    return parser().parse_args(arguments)


def extra_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of ``quantize_static`` for the flags of a command line."""
    found: dict[str, Any] = {
        key: getattr(options, name) for name, (key, _) in _FLAGS.items() if getattr(options, name)
    }
    found["MinimumRealRange"] = options.minimum_real_range
    found["QuantizeBias"] = options.quantize_bias and not options.disable_quantize_bias
    if options.calib_tensor_range_symmetric is not None:
        found["CalibTensorRangeSymmetric"] = options.calib_tensor_range_symmetric
    if options.op_types_to_exclude_output_quantization:
        found["OpTypesToExcludeOutputQuantization"] = options.op_types_to_exclude_output_quantization
    if options.op_per_channel_axis:
        found["QDQOpTypePerChannelSupportToAxis"] = {
            op: _axis(op, a) for op, a in options.op_per_channel_axis
        }
    overrides = get_tensor_quant_overrides(options.tensor_quant_overrides)
    if overrides:
        found["TensorQuantOverrides"] = overrides
    return found


def _axis(op: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"The axis of {op} is {text!r}, which is not an integer.") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantize as the arguments say, by default those of the command line."""
    from octavo.quantization.quantize import quantize_static

    options = parse_arguments(arguments)
    quantize_static(
        options.input_model_path,
        options.output_quantized_model_path,
        OnnxModelCalibrationDataReader(options.input_model_path),
        quant_format=_FORMATS[options.quant_format],
        per_channel=options.per_channel,
        activation_type=_TYPES[options.activation_type],
        weight_type=_TYPES[options.weight_type],
        nodes_to_quantize=options.nodes_to_quantize,
        nodes_to_exclude=options.nodes_to_exclude,
        calibrate_method=_METHODS[options.calibration_method],
        extra_options=extra_options(options),
    )


__getattr__ = elsewhere(__name__)


if __name__ == "__main__":
    sys.exit(exit_code(main, parser().prog))
