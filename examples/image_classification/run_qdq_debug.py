"""Where does a quantized classifier lose? Weights and activations of both models, matched and compared.

python examples/image_classification/run.py
python examples/image_classification/run_qdq_debug.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from data import SHIPPED, reader

from octavo.quantization.qdq_loss_debug import (
    collect_activations,
    compute_activation_error,
    compute_weight_error,
    create_activation_matching,
    create_weight_matching,
    modify_model_output_intermediate_tensors,
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--float_model", type=Path, default=Path("out/image_classification.prepared.onnx"))
    parser.add_argument("--qdq_model", type=Path, default=Path("out/image_classification.onnx"))
    parser.add_argument("--calibrate_dataset", type=Path, default=SHIPPED / "calibration.npz")
    parser.add_argument("--limit", type=int, default=8, help="how many images to compare on (0: all)")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    weights = create_weight_matching(str(options.float_model), str(options.qdq_model))
    print("weights, SQNR in dB, worst first")
    for name, decibels in sorted(compute_weight_error(weights).items(), key=lambda item: item[1]):
        print(f"  {decibels:6.1f}  {name}")

    activations = {}
    for kind, model in (("float", options.float_model), ("qdq", options.qdq_model)):
        augmented = model.with_suffix(".augmented.onnx")
        modify_model_output_intermediate_tensors(str(model), str(augmented))
        samples = reader(options.calibrate_dataset, options.float_model, options.limit)
        activations[kind] = collect_activations(str(augmented), samples)
        augmented.unlink()
    matched = create_activation_matching(activations["qdq"], activations["float"])
    print(
        "activations, SQNR in dB, worst first: against the float model, and of quantizing this tensor alone"
    )
    for name, error in sorted(
        compute_activation_error(matched).items(), key=lambda item: item[1]["xmodel_err"]
    ):
        print(f"  {error['xmodel_err']:6.1f}  {error['qdq_err']:6.1f}  {name}")


if __name__ == "__main__":
    main()
