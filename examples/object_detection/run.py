"""Calibrate, quantize and evaluate an object detector on images with COCO annotations.

    python examples/object_detection/run.py
    python examples/object_detection/run.py --model yolov8n.onnx --calibration train2017/ \\
        --images val2017/ --annotations instances_val2017.json

Without arguments it makes images and a small detector of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from made import CLASSES, write_detector, write_images

from octavo.evaluation.detection.annotations import COCO_80
from octavo.evaluation.detection.reader_classes import YoloV3DataReader, YoloV3Evaluator
from octavo.quantization import QuantType, create_calibrator, quantize_static, write_calibration_table


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a YOLO detector with one image as its input")
    parser.add_argument("--calibration", type=Path, help="a folder of images to calibrate with")
    parser.add_argument("--images", type=Path, help="a folder of images to evaluate on")
    parser.add_argument("--annotations", type=Path, help="what is on them, in COCO's format")
    parser.add_argument("--limit", type=int, default=32, help="images to calibrate with (0: all)")
    parser.add_argument("--stride", type=int, default=16, help="images that one evaluator goes through")
    parser.add_argument("--batch", type=int, default=1, help="images in one feed (1: serial processing)")
    parser.add_argument("--out", type=Path, default=Path("out/object_detection"))
    options = parser.parse_args()
    given = [options.model, options.calibration, options.images, options.annotations]
    if any(given) and not all(given):
        parser.error("give --model, --calibration, --images and --annotations together, or none of them")
    return options


def made(options: argparse.Namespace) -> None:
    """Fill in what was not given."""
    options.model = options.out / "detector.onnx"
    write_detector(options.model)
    options.calibration, options.images = options.out / "calibration", options.out / "images"
    write_images(options.calibration, 16, seed=1)
    options.annotations = write_images(options.images, 32, seed=2)


def evaluate(model: Path, options: argparse.Namespace, categories: Sequence[int]) -> dict[str, float]:
    """COCO's figures, stride by stride, so that no more than a stride of images is in memory."""
    total = sum(1 for path in options.images.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    results = []
    for start in range(0, total, options.stride):
        reader = YoloV3DataReader(
            options.images,
            model_path=model,
            start_index=start,
            size_limit=options.stride,
            batch_size=options.batch,
            is_evaluation=True,
            annotations=options.annotations,
        )
        evaluator = YoloV3Evaluator(model, reader, categories=categories)
        evaluator.predict()
        results += evaluator.get_result()
    return evaluator.evaluate(results, options.annotations)


def main() -> None:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    is_made = options.model is None
    if is_made:
        made(options)
    categories = range(1, len(CLASSES) + 1) if is_made else COCO_80

    reader = YoloV3DataReader(options.calibration, options.model, size_limit=options.limit)
    calibrator = create_calibrator(options.model, augmented_model_path=str(options.out / "augmented.onnx"))
    calibrator.collect_data(reader)
    write_calibration_table(calibrator.compute_data(), dir=str(options.out))
    print(f"calibration tables: {options.out}/calibration.flatbuffers, .json and .cache")

    quantized = options.out / "detector.int8.onnx"
    reader.rewind()
    quantize_static(
        options.model,
        quantized,
        reader,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        op_types_to_quantize=["Conv"],
    )
    for name, model in (("float", options.model), ("int8", quantized)):
        figures = evaluate(model, options, list(categories))
        print(f"{name:6s}" + "  ".join(f"{key} {value:.3f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
