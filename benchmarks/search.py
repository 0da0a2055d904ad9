"""What it saves that a search reads and prepares a model once.

    python benchmarks/search.py --zoo PATH
    python benchmarks/search.py --zoo PATH --models mobilenet_v2,yolov8n --samples 32

The automatic choice runs twice on the same samples, each time in a process of its own: once as it is,
where every trial works on a copy of the prepared model, and once with a model that is read and prepared
anew for each plan and each trial. The time limit is off, so that both make the same trials; what they
write has to be the same. Time is CPU time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

from _measure import (
    Feeds,
    Figures,
    Meter,
    Verdict,
    cpu_seconds,
    import_octavo,
    machine,
    markdown,
    number,
    print_verdicts,
    run_task,
    write_json,
)
from _zoo import zoo_module

MODELS = "fashion_cnn,mobilenet_v2,efficientnet_lite0"


def task_search(payload: Figures) -> Figures:
    """One search; CPU seconds in all and for preparing, and how often a model was prepared or copied."""
    octavo = import_octavo()
    from octavo import pipeline
    from octavo.evaluation.timing.latency import Ratio
    from octavo.tuning import runner

    evaluate = zoo_module(payload["zoo"], "evaluate")
    feeds = list(evaluate.calibration(payload["model"], limit=payload["samples"]))
    source = evaluate.model_path(payload["model"])
    spent, count = 0.0, 0
    copy, prepare = pipeline.PreparedModel.copy, pipeline.prepared

    def another(self: pipeline.PreparedModel) -> pipeline.PreparedModel:
        nonlocal spent, count
        began = cpu_seconds()
        found = copy(self) if payload["once"] else prepare(self.source, 13, pipeline.run_of({}))
        spent, count = spent + cpu_seconds() - began, count + 1
        return found

    def same_speed(_: object, models: list[object], *rest: object, **more: object) -> list[Ratio]:
        return [Ratio(1.5, 1.5, 1.5)] * len(models)  # what is timed is the search, and not the models

    with (
        mock.patch.object(pipeline.PreparedModel, "copy", another),
        mock.patch.object(runner, "speeds", same_speed),
        Meter(Feeds(list)) as meter,
    ):
        tuned = octavo.tune(
            source, feeds, output=payload["output"], engine="serial", threads=1, time_limit=None
        )
    digest = hashlib.sha256(Path(payload["output"]).read_bytes()).hexdigest() if tuned.met else ""
    return {
        "cpu_s": meter.figures["cpu_s"],
        "copies_s": spent,
        "copies": count,
        "trials": len(tuned.trials),
        "digest": digest,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zoo", type=Path, required=True, help="the folder with evaluate.py")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("OCTAVO_ZOO", str(options.zoo / "models"))
    rows, found = [], {}
    with tempfile.TemporaryDirectory(prefix="octavo-search-") as folder:
        for name in options.models.split(","):
            for once in (True, False):
                payload = {"zoo": str(options.zoo), "model": name, "samples": options.samples, "once": once}
                outcome = run_task(task_search, {**payload, "output": str(Path(folder) / f"{once}.onnx")})
                if outcome.error:
                    raise SystemExit(f"{name}: {outcome.error}")
                found[name, once] = outcome.figures
            shared, anew = found[name, True], found[name, False]
            saved = anew["copies_s"] - shared["copies_s"]
            rows.append([
                name, str(shared["trials"]), str(anew["copies"]), number(shared["copies_s"], ".2f"),
                number(anew["copies_s"], ".2f"), number(saved, ".2f"),
                number(100 * saved / anew["cpu_s"], ".0f"),
                "yes" if shared["digest"] == anew["digest"] else "no",
            ])  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    head = ("model", "trials", "copies", "copied, CPU s", "prepared anew, CPU s", "saved, CPU s",
            "% of the search", "same model")  # fmt: skip
    print(markdown(head, rows, words=("model",)))
    cheaper = all(found[name, True]["copies_s"] < found[name, False]["copies_s"] for name, _ in found)
    same = all(row[-1] == "yes" for row in rows)
    print_verdicts([
        Verdict("copies of the prepared model cost less than preparing it", cheaper, "CPU seconds above"),
        Verdict("both write the same model", same, "by their bytes"),
    ])  # fmt: skip
    write_json(
        options.json,
        {"machine": machine(), "rows": [{"model": n, "once": o, **f} for (n, o), f in found.items()]},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
