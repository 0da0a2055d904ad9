"""Language models at 4 and 8 bits: what Octavo and ``onnxruntime.quantization`` make of the same model.

::

    python benchmarks/generative.py MODEL.onnx … --tokenizer tokenizer.json --data valid.txt --test test.txt
    python benchmarks/generative.py MODEL.onnx … --ways stock-k-quant,octavo-data --windows 16 --json FILE

For every way to quantize: perplexity over windows of 512 tokens of the test text, the KL divergence of the
predictions from float's with its 95 % interval, how often both find the same token most likely, megabytes,
CPU seconds and peak memory to make it, and with a cache the speed of reading a prompt and of writing tokens
(CPU time, one thread, in turns with float).

All ways of 4 bits have blocks of 32, an 8-bit product that makes the logits and accuracy level 4, unless
their name says otherwise. Stock's default quantizer has one width for a model: it runs twice, the head apart.
Its HQQ needs torch, and is left out with that reason where torch is not installed. The calibration text must
not hold the test text.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _measure import (
    Figures,
    Meter,
    TaskError,
    folder_bytes,
    import_octavo,
    import_whole,
    leave_on_termination,
    machine,
    markdown,
    number,
    run_task,
    write_json,
)

WINDOW = 512
TOGETHER = 3  # models that are judged beside float in one process: 0.5 GB each for 135 million weights
BLOCK, BITS, HEAD_BITS, LEVEL = 32, 4, 8, 4
LONGEST = 900.0  # seconds for one way
TABLE = ("", "perplexity", "KL", "95 %", "same top-1", "MB", "CPU s", "peak MB", "prompt ×", "tokens ×")


# ------------------------------------------------------------------------------------- the ways


def octavo_way(**options: Any) -> Callable[[Figures], None]:
    def make(payload: Figures) -> None:
        octavo = import_octavo()
        given = {name: value for name, value in options.items() if name != "data"}
        data = octavo.text(payload["data"], payload["tokenizer"]) if options.get("data") else None
        octavo.quantize(payload["model"], data, output=payload["output"], **given)

    return make


def head_of(path: str) -> str:
    """The name of the product that makes the logits: stock has to be told."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    return next(node.name for node in graph.node if "logits" in node.output)


def stock_default(payload: Figures, *, symmetric: bool = False) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    head = head_of(payload["model"])
    model: Any = payload["model"]
    for bits, nodes in ((BITS, {"nodes_to_exclude": [head]}), (HEAD_BITS, {"nodes_to_include": [head]})):
        made = MatMulNBitsQuantizer(
            model, bits=bits, block_size=BLOCK, is_symmetric=symmetric, accuracy_level=LEVEL, **nodes
        )
        made.process()
        model = made.model.model
    made.model.save_model_to_file(payload["output"], True)


def stock_algorithm(payload: Figures, *, name: str) -> None:
    from onnxruntime.quantization import matmul_nbits_quantizer as stock

    head = head_of(payload["model"])
    config: Any
    if name == "hqq":
        config = stock.HQQWeightOnlyQuantConfig(block_size=BLOCK, bits=BITS)
    else:
        kind = stock.RTNWeightOnlyQuantConfig if name == "rtn" else stock.KQuantWeightOnlyQuantConfig
        config = kind(customized_weight_config={head: {"bits": HEAD_BITS}})
    made = stock.MatMulNBitsQuantizer(
        payload["model"], bits=BITS, block_size=BLOCK, accuracy_level=LEVEL, algo_config=config
    )
    made.process()
    made.model.save_model_to_file(payload["output"], True)


def stock_dynamic(payload: Figures) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(payload["model"], payload["output"])


WAYS: dict[str, Callable[[Figures], None]] = {
    "stock-int8-dynamic": stock_dynamic,
    "stock-default": stock_default,
    "stock-default-symmetric": lambda payload: stock_default(payload, symmetric=True),
    "stock-rtn": lambda payload: stock_algorithm(payload, name="rtn"),
    "stock-k-quant": lambda payload: stock_algorithm(payload, name="k-quant"),
    "stock-hqq": lambda payload: stock_algorithm(payload, name="hqq"),
    "octavo-int8-dynamic": octavo_way(recipe="W8"),
    "octavo": octavo_way(weights="int4"),
    "octavo-symmetric": octavo_way(weights="int4", symmetric=True),
    "octavo-data": octavo_way(weights="int4", data=True),
    "octavo-data-symmetric": octavo_way(weights="int4", symmetric=True, data=True),
    "octavo-data-level-0": octavo_way(weights="int4", accuracy_level=0, data=True),
    "octavo-data-rtn-awq": octavo_way(weights="int4", algorithm="rtn", steps="awq", data=True),
    "octavo-data-awq": octavo_way(weights="int4", steps="awq", data=True),
    "octavo-data-gptq-awq": octavo_way(weights="int4", algorithm="gptq", steps="awq", data=True),
    "octavo-data-gptq": octavo_way(weights="int4", algorithm="gptq", data=True),
    "octavo-data-4-bit-head": octavo_way(weights="int4", head="same", data=True),
    "octavo-data-shared-8": octavo_way(weights="int4", embeddings=8, data=True),
    "octavo-data-shared-4": octavo_way(weights="int4", head=4, embeddings=4, data=True),
    "octavo-data-by-sensitivity": octavo_way(weights="int4", bits=4, embeddings=8, data=True),
}
UNUSUAL = ("gptq", "awq", "by-sensitivity")
USUAL = tuple(name for name in WAYS if not any(one in name for one in UNUSUAL))


# ---------------------------------------------------------------------------------------- tasks


def make(payload: Figures) -> Figures:
    """Quantize, and say what it took."""
    logging.disable(logging.WARNING)
    if payload["way"].startswith("octavo"):
        import_octavo()
    else:
        import_whole("onnxruntime.quantization")
    try:
        with Meter() as meter:
            WAYS[payload["way"]](payload)
    except ImportError as error:
        raise TaskError(f"not installed: {error.name or error}") from error
    return {**meter.figures, "marks": None, "mb": folder_bytes(Path(payload["output"]).parent) / 1e6}


def judge(payload: Figures) -> Figures:
    """Compare some quantized models with float: predictions and speed."""
    octavo = import_octavo()
    from octavo.evaluation.evaluator import evaluate_several

    models = [payload["model"], *payload["made"]]
    found = evaluate_several(
        models,
        payload["test"],
        "perplexity",
        tokenizer=payload["tokenizer"],
        window=WINDOW,
        samples=payload["windows"],
        threads=1,
    )
    speeds = octavo.bench(
        *(models[0], models[1:]), threads=1, clock="cpu", seconds=6.0, profile=False, memory=False
    )
    float_score = found[0].against_scores[0].value
    rows = []
    for result, measured in zip(found, speeds.models[1:], strict=True):
        scores = {score.name: (score.value, score.low, score.high) for score in result.scores}
        spoken = measured.decoding
        rows.append(
            {
                "scores": scores,
                "prompt": spoken.prefill_ratio.value if spoken and spoken.prefill_ratio else None,
                "token": spoken.token_ratio.value if spoken and spoken.token_ratio else None,
                "tokens_per_second": spoken.tokens_per_second if spoken else None,
            }
        )
    first = speeds.models[0].decoding
    return {
        "rows": rows,
        "float": float_score,
        "float_tokens_per_second": first.tokens_per_second if first else None,
        "tokens": found[0].settings["tokens"],
    }


# ---------------------------------------------------------------------------------- the command


def measured(options: argparse.Namespace, model: Path, folder: Path) -> Iterator[tuple[str, Figures]]:
    """Each way, and all that was measured of it."""
    given = {
        "model": str(model),
        "tokenizer": str(options.tokenizer.resolve()),
        "data": str(options.data.resolve()),
        "test": str(options.test.resolve()),
        "windows": options.windows,
    }
    made: dict[str, Figures] = {}
    for way in options.ways:
        output = folder / way / "model.onnx"
        output.parent.mkdir()
        answer = run_task(make, {**given, "way": way, "output": str(output)}, timeout=LONGEST)
        if answer.error:
            yield way, {"error": answer.error}
        else:
            made[way] = {**answer.figures, "output": str(output)}
        if len(made) == TOGETHER or way == options.ways[-1]:
            yield from judged(given, made)
            made = {}


def judged(given: Figures, made: dict[str, Figures]) -> Iterator[tuple[str, Figures]]:
    if not made:
        return
    payload = {**given, "made": [one["output"] for one in made.values()]}
    answer = run_task(judge, payload, timeout=2 * LONGEST)
    for index, (way, figures) in enumerate(made.items()):
        if answer.error:
            yield way, {**figures, "error": answer.error}
        else:
            shared = {key: value for key, value in answer.figures.items() if key != "rows"}
            yield way, {**figures, **shared, **answer.figures["rows"][index]}
        for file in Path(figures["output"]).parent.iterdir():
            file.unlink()


def line(way: str, figures: Figures) -> list[str]:
    if "scores" not in figures:
        return [way, figures["error"], *[""] * (len(TABLE) - 2)]
    value, low, high = figures["scores"]["kl"]
    return [
        way,
        number(figures["scores"]["perplexity"][0], ".2f"),
        number(value, ".3f"),
        f"{low:.3f} … {high:.3f}",
        number(figures["scores"]["same_top1"][0], ".3f"),
        number(figures["mb"], ".0f"),
        number(figures["cpu_s"], ".0f"),
        number(figures["peak_rss_mib"], ".0f"),
        number(figures["prompt"], ".2f") if figures["prompt"] else "–",
        number(figures["token"], ".2f") if figures["token"] else "–",
    ]


def main() -> None:
    leave_on_termination()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.onnx")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="texts to calibrate with, one a line")
    parser.add_argument("--test", type=Path, required=True, help="the text to measure with")
    parser.add_argument("--windows", type=int, default=16, help="of 512 tokens (default: 16)")
    parser.add_argument("--ways", default=",".join(USUAL), help=f"some of {', '.join(WAYS)}")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.ways = [way for way in options.ways.split(",") if way in WAYS or parser.error(f"no way {way}")]
    found: dict[str, dict[str, Figures]] = {}
    for model in options.models:
        with tempfile.TemporaryDirectory(prefix="octavo-generative-") as folder:
            rows = found[str(model)] = {}
            for way, figures in measured(options, model.resolve(), Path(folder)):
                rows[way] = figures
                print(" ".join(line(way, figures)), flush=True)
                write_json(options.json, {"machine": machine(), "models": found})
        plain = next((figures["float"] for figures in rows.values() if "float" in figures), None)
        print(f"\n{model}, float perplexity {number(plain, '.2f')}\n")
        print(markdown(TABLE, [line(way, figures) for way, figures in rows.items()]), "\n", flush=True)


if __name__ == "__main__":
    main()
