"""Ten models that Octavo was not developed with: how often the command without options keeps its promise.

    python benchmarks/more.py --zoo PATH                        # the models as make_more.py has built them
    python benchmarks/more.py --zoo PATH --models aecmos,dnsmos --variants octavo,stock-best

A result is a success if it is close to float (20 dB in the worst output, or 99 of 100 answers the same
where rows have a largest value), faster than float (processor time, one thread, in turns), and has at
most 0.6 × the bytes. The models are built by the zoo's make_more.py into $OCTAVO_ZOO, and judged by its
more.py. Each model is quantized and judged in processes of its own; the others are
`onnxruntime.quantization` as it is called by default, with its best settings, and dynamic.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from _measure import Figures, Verdict, machine, markdown, number, print_verdicts, run_task, write_json
from _more import VARIANTS, task_judge, task_quantize, zoo_more

MIN_DB, MIN_AGREEMENT, MAX_BYTES = 20.0, 0.99, 0.6


def is_success(row: Figures) -> bool:
    """Whether a row is close to float, faster and small enough at once."""
    if row.get("error") or row.get("speed_ratio") is None:
        return False
    same = [row[key] for key in ("agreement", "equal_integers") if row.get(key) is not None]
    close = (row["sqnr_db"] or 0.0) >= MIN_DB or (bool(same) and min(same) >= MIN_AGREEMENT)
    return bool(close and row["speed_ratio"] > 1 and row["bytes_ratio"] <= MAX_BYTES)


def measured(model: str, variant: str, options: argparse.Namespace, folder: Path) -> Figures:
    """One model, quantized in one way and judged."""
    payload = {
        "zoo": str(options.zoo),
        "model": model,
        "variant": variant,
        "seconds": options.seconds,
        "output": str(folder / model / variant / "model.onnx"),
    }
    row: Figures = {"model": model, "variant": variant}
    for task in (task_quantize, task_judge):
        outcome = run_task(task, payload, timeout=options.timeout)
        row |= outcome.figures
        if outcome.error:
            return {**row, "error": outcome.error, "success": False}
    return {**row, "success": is_success(row)}


def cells(row: Figures) -> list[str]:
    """A row of the table."""
    words = row.get("error") or row.get("note") or ""
    return [
        row["model"],
        row["variant"],
        number(row.get("sqnr_db")),
        number(row.get("agreement"), ".3f"),
        number(row.get("speed_ratio"), ".2f"),
        number(row.get("bytes_ratio"), ".2f"),
        "yes" if row["success"] else "no",
        number(row.get("wall_s"), ".0f"),
        number(row.get("cpu_s"), ".0f"),
        words,
    ]


HEAD = ("model", "variant", "SQNR dB", "agreement", "speed", "bytes", "success", "wall s", "CPU s", "chosen")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zoo", type=Path, required=True, help="the folder with make_more.py and more.py")
    parser.add_argument("--models", help="comma-separated; default: all that are built")
    parser.add_argument("--variants", default="octavo,stock-default,stock-best,stock-dynamic")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each speed is measured")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one model in one way")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = options.models.split(",") if options.models else zoo_more(str(options.zoo)).names()
    variants = options.variants.split(",")
    if unknown := set(variants) - set(VARIANTS):
        raise SystemExit(f"no variant {', '.join(sorted(unknown))}; known: {', '.join(VARIANTS)}")
    os.environ.setdefault("OCTAVO_ZOO", str(options.zoo / ".models"))
    rows = []
    with tempfile.TemporaryDirectory(prefix="octavo-more-") as folder:
        for variant in variants:
            for name in names:
                rows.append(measured(name, variant, options, Path(folder)))
                print(" | ".join(cells(rows[-1])), file=sys.stderr, flush=True)
                write_json(options.json, {"machine": machine(), "rows": rows})
    print(markdown(HEAD, [cells(row) for row in sorted(rows, key=lambda row: row["model"])], words=HEAD[:2]))
    kept = {v: sum(row["success"] for row in rows if row["variant"] == v) for v in variants}
    for variant, count in kept.items():
        print(f"{variant}: {count} of {len(names)}")
    if "octavo" in kept:
        count = kept["octavo"]
        claim = "the command without options succeeds on every model"
        print_verdicts([Verdict(claim, count == len(names), f"{count} of {len(names)}")])
    return 0


if __name__ == "__main__":
    sys.exit(main())
