"""Quantize a classifier to QDQ with the drop-in, run both models and time them.

    python examples/image_classification/run.py
    python examples/image_classification/run.py --input_model mobilenet.onnx --output_model out.onnx \\
        --calibrate_dataset images/
"""

from __future__ import annotations

import argparse
from pathlib import Path

from data import SHIPPED, reader

import octavo
from octavo.quantization import QuantFormat, QuantType, quant_pre_process, quantize_static


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input_model", type=Path, default=SHIPPED / "model.onnx")
    parser.add_argument("--output_model", type=Path, default=Path("out/image_classification.onnx"))
    parser.add_argument(
        "--calibrate_dataset",
        type=Path,
        default=SHIPPED / "calibration.npz",
        help="a folder of images, or an .npz file with an array of them",
    )
    parser.add_argument("--limit", type=int, default=64, help="how many images to calibrate with (0: all)")
    parser.add_argument(
        "--quant_format", type=QuantFormat.from_string, choices=list(QuantFormat), default=QuantFormat.QDQ
    )
    parser.add_argument("--per_channel", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    options.output_model.parent.mkdir(parents=True, exist_ok=True)
    prepared = options.output_model.with_suffix(".prepared.onnx")
    quant_pre_process(options.input_model, prepared)
    quantize_static(
        prepared,
        options.output_model,
        reader(options.calibrate_dataset, options.input_model, options.limit),
        quant_format=options.quant_format,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=options.per_channel,
    )
    print(f"written: {options.output_model} (float, prepared: {prepared})")
    samples = reader(options.calibrate_dataset, options.input_model, 16)
    print(octavo.bench(prepared, options.output_model, samples))


if __name__ == "__main__":
    main()
