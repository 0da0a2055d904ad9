"""Seconds and memory to quantize a model of more than 2 GB with external data.

    python benchmarks/large.py                 # 2.5 GB, dynamic and static int8
    python benchmarks/large.py --gb 0.2        # a quick look
    python benchmarks/large.py --stock         # the same with onnxruntime.quantization, per channel

The model is a decoder of the GPT kind with random weights (linear layers as MatMul + Add,
LayerNormalization, unmasked attention, an embedding looked up by Gather), written to disk piece by piece.
Random weights say nothing about accuracy; the outputs are compared with the float model's only to show
that the result is a working copy.

What is watched is anonymous memory (``RssAnon``), read every 20 ms from outside: pages of mapped files
are not counted, since the system can drop them at any time. Static quantization has to run the model, and
the runtime's session copies and packs the weights. So a plain session of the float model is measured by
itself, in the same way, and "beyond" is the peak while quantizing less the peak of that session, each
counted from where its imports left off. Without calibration (dynamic) the only session is the one that loads
and runs the result before it is handed over; a session of the result is measured in the same way and
subtracted, and the evidence gives the peak in all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _decoder import Size, write_model
from _measure import (
    MIB,
    Feed,
    Feeds,
    Figures,
    Meter,
    Outcome,
    Verdict,
    folder_bytes,
    import_octavo,
    import_whole,
    leave_on_termination,
    machine,
    markdown,
    number,
    open_session,
    print_verdicts,
    process_memory,
    run_task,
    sqnr_db,
    stock_reader,
    write_json,
)

GIB = 1024**3
SAMPLE_EVERY = 0.02
SEQUENCE = 32
CALIBRATION_SAMPLES = 2
MAX_BEYOND = 1 * GIB


def samples(vocabulary: int, seed: int, count: int) -> Iterator[Feed]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {"input_ids": rng.integers(0, vocabulary, (1, SEQUENCE))}


# -------------------------------------------------------------------------------------- the tasks


def task_make(payload: Figures) -> Figures:
    path, size = Path(payload["path"]), Size.of(payload["gb"])
    start = time.perf_counter()
    write_model(path, size)
    return {"bytes": folder_bytes(path.parent), "wall_s": time.perf_counter() - start, **vars(size)}


def task_session(payload: Figures) -> Figures:
    """What a plain session needs: create it, run it on the test samples, keep the outputs."""
    import onnxruntime  # noqa: F401  # the imports are not part of what is measured

    before = process_memory("RssAnon")
    with Meter() as meter:
        session = open_session(payload["path"], threads=2)
    created = process_memory("RssAnon")
    outputs = [session.run(None, feed)[0] for feed in samples(payload["vocabulary"], 1, CALIBRATION_SAMPLES)]
    np.save(payload["outputs"], np.concatenate(outputs))
    return {
        **meter.figures,
        "anon_before": before,
        "anon_created": created,
        "anon_run": process_memory("RssAnon"),
    }


def task_quantize(payload: Figures) -> Figures:
    source, output, static = Path(payload["source"]), Path(payload["output"]), payload["static"]
    feeds = Feeds(lambda: samples(payload["vocabulary"], 0, CALIBRATION_SAMPLES)) if static else None
    quantize = octavo_quantizer() if payload["tool"] == "octavo" else stock_quantizer()
    before = process_memory("RssAnon")
    with Meter(feeds) as meter:
        quantize(source, output, feeds)
    return {**meter.figures, "anon_before": before, "bytes": folder_bytes(output.parent)}


def octavo_quantizer() -> Any:
    octavo = import_octavo()
    return lambda source, output, feeds: octavo.quantize(source, feeds, effort="plain", output=output)


def stock_quantizer() -> Any:
    import_whole("onnxruntime.quantization")
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

    def quantize(source: Path, output: Path, feeds: Feeds | None) -> None:
        options: dict[str, Any] = {
            "per_channel": True,
            "weight_type": QuantType.QInt8,
            "use_external_data_format": True,
        }
        if feeds is None:
            quantize_dynamic(source, output, **options)
        else:
            quantize_static(source, output, stock_reader(feeds), activation_type=QuantType.QUInt8, **options)

    return quantize


# ------------------------------------------------------------------------------ parent: run, report


def session_row(
    folder: Path, name: str, model: Path, vocabulary: int, timeout: float
) -> tuple[Figures, Outcome]:
    outcome = run_task(
        task_session,
        {"path": str(model), "vocabulary": vocabulary, "outputs": str(folder / f"{name}.npy")},
        timeout=timeout,
        sample_every=SAMPLE_EVERY,
    )
    peak = max(outcome.peak_anonymous, outcome.figures.get("anon_run", 0))
    return {**outcome.figures, "peak": peak, "error": outcome.error}, outcome


def measure_way(
    folder: Path, source: Path, tool: str, static: bool, vocabulary: int, plain: Figures, timeout: float
) -> Figures:
    """Quantize in one way, then load and run the result; its files are removed again."""
    name = f"{tool} {'static' if static else 'dynamic'}"
    with tempfile.TemporaryDirectory(prefix="out-", dir=folder) as target:
        output = Path(target) / "model.onnx"
        outcome = run_task(
            task_quantize,
            {
                "tool": tool,
                "static": static,
                "source": str(source),
                "output": str(output),
                "vocabulary": vocabulary,
            },
            timeout=timeout,
            sample_every=SAMPLE_EVERY,
            folder=Path(target),
        )
        row: Figures = {
            "name": name,
            **outcome.figures,
            "peak": outcome.peak_anonymous,
            "error": outcome.error,
        }
        row.pop("marks", None)
        if outcome.error:
            return row
        row["phases"] = outcome.phases()
        loaded, _ = session_row(folder, name, output, vocabulary, timeout)
    row["result_session"] = loaded["peak"] - loaded.get("anon_before", 0)
    needed = plain["peak"] - plain["anon_before"] if static else row["result_session"]
    row["beyond"] = row["peak"] - row["anon_before"] - (needed if not plain["error"] else 0)
    row["session_peak"], row["error"] = loaded["peak"], loaded["error"] and f"result: {loaded['error']}"
    if not loaded["error"]:
        row["sqnr_db"] = sqnr_db(np.load(folder / "float.npy"), np.load(folder / f"{name}.npy"))
    return row


def table_rows(made: Figures, plain: Figures, rows: list[Figures]) -> Iterator[list[str]]:
    def mib(value: int | None) -> str:
        return number(value / MIB if value is not None else None, ",.0f")

    def cells(name: str, row: Figures, notes: str) -> list[str]:
        return [
            name,
            number(row["bytes"] / 1e9 if "bytes" in row else None, ".2f"),
            number(row.get("wall_s")),
            number(row.get("cpu_s")),
            mib(row.get("peak")),
            mib(row.get("beyond")),
            mib(row.get("peak_rss_mib") and round(row["peak_rss_mib"] * MIB)),
            mib(row.get("session_peak")),
            number(row.get("sqnr_db")),
            notes,
        ]

    note = f"created {mib(plain.get('anon_created'))}, after the runs {mib(plain.get('anon_run'))} MiB"
    session = {"bytes": made["bytes"], "session_peak": plain["peak"]}
    yield cells("float: plain session", session, plain["error"] or note)
    for row in rows:
        phases = ", ".join(
            f"{name} {mib(peak)}" for name, peak in row.get("phases", {}).items() if peak and name != "end"
        )
        yield cells(row["name"], row, row["error"] or f"peaks from {phases}")


def verdicts(rows: list[Figures]) -> Iterator[Verdict]:
    for row in rows:
        if not row["name"].startswith("octavo"):
            continue
        beyond = row.get("beyond")
        claim = f"{row['name']}: under 1 GiB beyond the runtime's own session"
        if beyond is None:
            yield Verdict(claim, False, row["error"])
        else:
            evidence = f"{beyond / MIB:,.0f} MiB"
            if "dynamic" in row["name"]:
                own = row["beyond"] + row["result_session"]
                evidence += f"; {own / MIB:,.0f} MiB in all, with the session that checks the result"
            yield Verdict(claim, beyond < MAX_BEYOND, evidence)
        yield Verdict(
            f"{row['name']}: the result loads and runs", not row["error"], row["error"] or "it does"
        )


HEADER = (
    "", "GB on disk", "wall s", "CPU s", "peak MiB", "beyond MiB", "RSS MiB", "session MiB", "SQNR", "notes"
)  # fmt: skip


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[Figures, Figures, list[Figures]]:
    def told(what: str, row: Figures) -> Figures:
        print(what, {key: value for key, value in row.items() if key != "marks"}, file=sys.stderr, flush=True)
        return row

    (folder / "source").mkdir()
    source = folder / "source" / "model.onnx"
    made = run_task(task_make, {"path": str(source), "gb": arguments.gb}, timeout=arguments.timeout)
    if made.error:
        raise SystemExit(f"cannot write the model: {made.error}")
    told("made", made.figures)
    vocabulary = made.figures["vocabulary"]
    plain, _ = session_row(folder, "float", source, vocabulary, arguments.timeout)
    told("float session", plain)
    rows = []
    for tool in ["octavo", "stock"] if arguments.stock else ["octavo"]:
        for static in (False, True):
            row = measure_way(folder, source, tool, static, vocabulary, plain, arguments.timeout)
            rows.append(told(row["name"], row))
    return made.figures, plain, rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=2.5, metavar="GB", help="least size of the float model")
    parser.add_argument(
        "--stock", action="store_true", help="measure onnxruntime.quantization too (needs 9 GB)"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800, metavar="S", help="limit of each child process"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where temporary files go; not on tmpfs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    arguments = parser.parse_args()
    leave_on_termination()
    with tempfile.TemporaryDirectory(prefix="octavo-large-", dir=arguments.dir) as folder:
        made, plain, rows = measure(arguments, Path(folder))
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    print("{layers} layers of {width}, vocabulary {vocabulary}\n".format(**made))
    print(markdown(HEADER, table_rows(made, plain, rows), words=("notes",)))
    found = list(verdicts(rows))
    print_verdicts(found)
    plain.pop("marks", None)
    write_json(
        arguments.json,
        {
            "machine": machine(),
            "model": made,
            "session": plain,
            "rows": rows,
            "verdicts": [vars(verdict) for verdict in found],
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
