"""Write models with two checkouts of Octavo, through every door, and compare them byte by byte.

::

    python scripts/same_models.py OLD NEW [--zoo ../shared/zoo] [--only PATTERN] [--work FOLDER] [--workers N]

OLD and NEW are checkouts (``git worktree add ../old 338f875``). Float models come from the tests of NEW and,
where it is there, from the zoo; each checkout quantizes them in processes of its own. A model that differs,
or that only one of the two can make, has to match a pattern in ``scripts/same_models.txt``. A line there has
the reason and what it is about (:mod:`model_forms`): it explains a job only if the models are the same bytes
once that is set aside. ``results`` instead asks that both give the same bits on the samples, and ``other``
stands for another model altogether, by a decision that the reason names; such lines match few jobs. The exit
code is 1 where nothing explains a difference.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from model_forms import FORMS, differing_parts, same_results

HERE = Path(__file__).resolve()
REASONS = HERE.with_suffix(".txt")
FORMATS = ("QDQ", "QOperator")
TYPES = ("QUInt8/QInt8", "QInt8/QInt8", "QUInt8/QUInt8")
SAMPLES = 4
ZOO_SAMPLES = 8
ZOO_MODELS = (
    "mobilenet_v2", "efficientnet_lite0", "yolov8n", "fashion_cnn", "ppocrv4_rec", "ppocrv4_det",
    "silero_vad", "silero_vad_ifless", "magika", "all_minilm_l6_v2",
)  # fmt: skip
RESULTS = ("results",)

Job = dict[str, Any]


# ---- float models and samples, made once


def write_graphs(new: Path, work: Path) -> dict[str, list[str]]:
    """Write the graphs of the tests and samples for them; gives their names by kind."""
    sys.path[:0] = [str(new / "tests"), str(new / "tests" / "quantization"), str(new / "src")]
    import graphs  # type: ignore[import-not-found]
    import qat_graphs  # type: ignore[import-not-found]
    import quantizing  # type: ignore[import-not-found]
    import weight_graphs  # type: ignore[import-not-found]
    from tuning import nets  # type: ignore[import-not-found]

    kinds: dict[str, dict[str, Callable[[], onnx.ModelProto]]] = {
        "graph": {
            **graphs.CASES,
            "layers": quantizing.layers,
            "convolutions": quantizing.convolutions,
            "conv and linear": nets.conv_and_linear,
        },
        "weights": {
            "product": weight_graphs.product,
            "product f16": lambda: weight_graphs.product(dtype=np.float16),
            "product opset 21": lambda: weight_graphs.product(opset=21),
            "three": weight_graphs.three,
            "lookup": weight_graphs.lookup,
            "branches": weight_graphs.branches,
        },
        "qat": {
            "torch": qat_graphs.torch_cnn,
            "torch int8": lambda: qat_graphs.torch_cnn(kind=np.int8),
            "torch per tensor": lambda: qat_graphs.torch_cnn(axis=None),
            "tf": qat_graphs.tf_cnn,
            "chain": qat_graphs.chain_linear,
            "chain floor": lambda: qat_graphs.chain_linear(floor=True),
        },
    }
    names: dict[str, list[str]] = {}
    for kind, cases in kinds.items():
        for name, make in cases.items():
            label = name.replace(" ", "_")
            proto = make()
            (work / f"{label}.onnx").write_bytes(proto.SerializeToString())
            samples = quantizing.feeds_for(proto, SAMPLES)
            np.savez(
                work / f"{label}.npz", **{f"{i}/{k}": v for i, s in enumerate(samples) for k, v in s.items()}
            )
            names.setdefault(kind, []).append(label)
    return names


def write_zoo(zoo: Path | None, work: Path) -> list[str]:
    """Write samples for the models of the zoo that are there; the models are read where they lie."""
    if zoo is None or not (zoo / "evaluate.py").exists():
        return []
    sys.path.insert(0, str(zoo))
    from evaluate import calibration, model_path  # type: ignore[import-not-found]

    found = []
    for name in ZOO_MODELS:
        try:
            path = Path(model_path(name))
            feeds = list(calibration(name, limit=ZOO_SAMPLES))
        except (OSError, SystemExit, KeyError):
            continue
        if path.exists():
            np.savez(
                work / f"zoo_{name}.npz", **{f"{i}/{k}": v for i, s in enumerate(feeds) for k, v in s.items()}
            )
            (work / f"zoo_{name}.path").write_text(str(path))
            found.append(f"zoo_{name}")
    return found


# ---- what is made of them


def jobs(kinds: dict[str, list[str]], zoo: list[str]) -> Iterator[Job]:
    """Every model through every door that takes it."""
    for name in kinds["graph"]:
        yield from _recipes(name)
        yield from _stock(name)
    for name in kinds["weights"]:
        yield from _weights(name)
    for name in kinds["qat"]:
        for style in ("qdq", "qoperator"):
            for exact in (True, False):
                yield {"door": "qat", "model": name, "style": style, "exact": exact}
    for name in zoo:
        yield {"door": "target", "model": name, "target": "ort-cpu", "steps": True}
        yield {"door": "target", "model": name, "target": "ort-cpu", "steps": False}
        yield {"door": "preset", "model": name, "preset": "W8"}
        yield {"door": "preset", "model": name, "preset": "W8A8", "style": "qoperator"}
        for kind in FORMATS:
            yield {
                "door": "static",
                "model": name,
                "format": kind,
                "types": "QUInt8/QInt8",
                "per_channel": True,
            }
        yield {"door": "dynamic", "model": name, "weights": "QInt8", "per_channel": True}


def _recipes(name: str) -> Iterator[Job]:
    for target in (
        "ort-cpu", "ort-cpu-vnni", "ort-cpu-avx2", "ort-cpu-arm64", "tensorrt", "qnn", "openvino", "web",
        "portable",
    ):  # fmt: skip
        yield {"door": "target", "model": name, "target": target, "steps": False}
    for preset in ("W8A8", "W8A16", "W8", "W4A16", "FP8"):
        yield {"door": "preset", "model": name, "preset": preset}
    yield {"door": "preset", "model": name, "preset": "W8A8", "style": "qoperator"}
    for style in ("qdq", "qoperator"):
        yield {"door": "preset", "model": name, "preset": "W8A8", "style": style, "everywhere": True}
    yield {"door": "plan", "model": name}
    yield {"door": "target", "model": name, "target": "ort-cpu", "steps": True}


def _stock(name: str) -> Iterator[Job]:
    for kind in FORMATS:
        for types in TYPES:
            for per_channel in (False, True):
                yield {
                    "door": "static",
                    "model": name,
                    "format": kind,
                    "types": types,
                    "per_channel": per_channel,
                }
    for types in ("QUInt16/QInt8", "QInt16/QInt16", "QUInt8/QInt4", "QFLOAT8E4M3FN/QFLOAT8E4M3FN"):
        yield {"door": "static", "model": name, "format": "QDQ", "types": types, "per_channel": False}
    for options in (
        {"ActivationSymmetric": True}, {"ForceQuantizeNoInputCheck": True},
        {"QDQKeepRemovableActivations": True}, {"AddQDQPairToWeight": True},
        {"DedicatedQDQPair": True}, {"QuantizeBias": False},
    ):  # fmt: skip
        yield {
            "door": "static",
            "model": name,
            "format": "QDQ",
            "types": TYPES[0],
            "per_channel": False,
            "options": options,
        }
    yield {
        "door": "static",
        "model": name,
        "format": "QDQ",
        "types": TYPES[0],
        "per_channel": True,
        "reduce_range": True,
    }
    for weights in ("QInt8", "QUInt8"):
        for per_channel in (False, True):
            yield {"door": "dynamic", "model": name, "weights": weights, "per_channel": per_channel}


def _weights(name: str) -> Iterator[Job]:
    for kind in FORMATS:
        for bits in (4, 8, 2):
            for symmetric in (False, True):
                for size in (16, 32, 128):
                    yield {
                        "door": "nbits",
                        "model": name,
                        "format": kind,
                        "bits": bits,
                        "symmetric": symmetric,
                        "size": size,
                    }
        for algorithm in ("rtn", "hqq", "k_quant", "gptq"):
            yield {"door": "nbits", "model": name, "format": kind, "bits": 4, "symmetric": False, "size": 32,
                   "algorithm": algorithm}  # fmt: skip
    for kind in (0, 1):
        yield {"door": "bnb4", "model": name, "kind": kind}


def label(job: Job) -> str:
    """A name for a job, which patterns match and files carry."""
    more = [f"{k}={v}" for k, v in job.items() if k not in ("door", "model", "options") and v is not None]
    more += [f"{k}={v}" for k, v in (job.get("options") or {}).items()]
    return "|".join([job["door"], job["model"], *more]).replace("/", "-")


# ---- in a checkout: one job after the other


def work_off(work: Path, out: Path, part: list[Job]) -> None:
    """Write a model for each job, or what error it ends in."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for job in part:
        target = out / f"{label(job)}.onnx"
        try:
            _DOORS[job["door"]](job, _source(work, job["model"]), _samples(work, job["model"]), target)
        except Exception as error:
            target.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")


def _source(work: Path, name: str) -> str:
    link = work / f"{name}.path"
    return link.read_text() if link.exists() else str(work / f"{name}.onnx")


def _samples(work: Path, name: str) -> list[dict[str, Any]]:
    with np.load(work / f"{name}.npz") as archive:
        found: dict[int, dict[str, Any]] = {}
        for key in archive.files:
            number, _, tensor = key.partition("/")
            found.setdefault(int(number), {})[tensor] = archive[key]
    return [found[i] for i in sorted(found)]


def _target(job: Job, source: str, data: list[Any], output: Path) -> None:
    import octavo
    from octavo.targets import target

    steps = ("smoothquant:mul=0.5", "clip", "bias-correction") if job["steps"] else ()
    recipe = target(job["target"]).static_recipe.but(steps=steps)
    octavo.quantize(source, data, recipe=recipe, target=job["target"], output=output)


def _preset(job: Job, source: str, data: list[Any], output: Path) -> None:
    import octavo

    recipe = octavo.preset(job["preset"])
    if job.get("everywhere"):
        recipe = recipe.but(placement=octavo.Placement.EVERYWHERE)
    given = data if recipe.is_static else None
    octavo.quantize(source, given, recipe=recipe, style=job.get("style"), output=output)


def _plan(job: Job, source: str, data: list[Any], output: Path) -> None:
    import octavo

    path = output.with_suffix(".json")
    octavo.plan(source, octavo.preset("W8A8")).save(path)
    octavo.quantize(source, data, plan=path, output=output)
    path.unlink()


def _qat(job: Job, source: str, data: list[Any], output: Path) -> None:
    import octavo

    octavo.convert_qat(source, data, style=job["style"], exact=job["exact"], output=output)


class _Reader:
    def __init__(self, samples: list[Any]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> Any:
        return next(self._samples, None)


def _static(job: Job, source: str, data: list[Any], output: Path) -> None:
    from octavo.quantization import QuantFormat, QuantType, quantize_static

    activation, weight = job["types"].split("/")
    quantize_static(
        source,
        output,
        _Reader(data),
        quant_format=QuantFormat[job["format"]],
        activation_type=QuantType[activation],
        weight_type=QuantType[weight],
        per_channel=job["per_channel"],
        reduce_range=job.get("reduce_range", False),
        extra_options=job.get("options"),
    )


def _dynamic(job: Job, source: str, data: list[Any], output: Path) -> None:
    from octavo.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, output, weight_type=QuantType[job["weights"]], per_channel=job["per_channel"])


def _nbits(job: Job, source: str, data: list[Any], output: Path) -> None:
    from octavo.quantization import QuantFormat
    from octavo.quantization import matmul_nbits_quantizer as stock

    form, ops = QuantFormat[job["format"]], ("MatMul", "Gather")
    config = None
    match job.get("algorithm"):
        case "rtn":
            config = stock.RTNWeightOnlyQuantConfig(quant_format=form)
        case "hqq":
            config = stock.HQQWeightOnlyQuantConfig(
                block_size=job["size"], bits=job["bits"], quant_format=form
            )
        case "k_quant":
            config = stock.KQuantWeightOnlyQuantConfig(quant_format=form)
        case "gptq":
            config = stock.GPTQWeightOnlyQuantConfig(_Reader(data), block_size=job["size"], quant_format=form)
    quantizer = stock.MatMulNBitsQuantizer(
        source,
        job["bits"],
        job["size"],
        job["symmetric"],
        quant_format=form,
        op_types_to_quantize=ops,
        algo_config=config,
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(output))


def _bnb4(job: Job, source: str, data: list[Any], output: Path) -> None:
    from octavo.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer

    quantizer = MatMulBnb4Quantizer(source, job["kind"], 64)
    quantizer.process()
    quantizer.model.save_model_to_file(str(output))


_DOORS: dict[str, Callable[[Job, str, list[Any], Path], None]] = {
    "target": _target, "preset": _preset, "plan": _plan, "qat": _qat, "static": _static, "dynamic": _dynamic,
    "nbits": _nbits, "bnb4": _bnb4,
}  # fmt: skip


# ---- both, and the comparison


def _run(checkout: Path, work: Path, out: Path, todo: list[Job], workers: int) -> None:
    """Do all jobs with one checkout, in some processes at a time."""
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0"}
    children = []
    for number in range(workers):
        listing = work / f"{out.name}.{number}.json"
        listing.write_text(json.dumps(todo[number::workers]))
        command = [sys.executable, str(HERE), "--worker", str(listing), str(work), str(out)]
        children.append(subprocess.Popen(command, env=environment, cwd=work))
    if any(child.wait() for child in children):
        raise SystemExit(f"a process of {checkout} has failed")


def _outcome(out: Path, name: str, forms: Sequence[str] = ()) -> tuple[str, bytes]:
    """Return what a job gave: a model's bytes, brought to some forms, or the kind of an error."""
    path = out / f"{name}.onnx"
    if not path.exists():
        error = path.with_suffix(".error")
        return "error", error.read_bytes().split(b":")[0] if error.exists() else b""
    beside = path.with_name(path.name + ".data")
    if not forms:
        return "model", _without_recipe(path.read_bytes()) + (beside.read_bytes() if beside.exists() else b"")
    model = onnx.load(path)
    for form in forms:
        FORMS[form](model)
    return "model", _without_recipe(model.SerializeToString())


def _without_recipe(content: bytes) -> bytes:
    """The model without the recipe in its metadata, whose text changes with every new setting."""
    model = onnx.ModelProto.FromString(content)
    kept = [entry for entry in model.metadata_props if entry.key != "octavo.recipe"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    return model.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class Reason:
    """Why jobs whose names match a pattern give other models, and in which forms these are the same."""

    pattern: str
    forms: tuple[str, ...] | None  # None: they are other models altogether, by a decision
    text: str

    @property
    def kind(self) -> str:
        """What the reason says of both models."""
        if self.forms is None:
            return "other models"
        return "same results" if self.forms == RESULTS else "same but for " + ", ".join(self.forms)

    def explains(self, work: Path, name: str) -> bool:
        """Whether two models of a job are the same but for this."""
        if not fnmatch.fnmatchcase(name, self.pattern):
            return False
        if self.forms is None:
            return True
        if self.forms == RESULTS:
            both = [work / side / f"{name}.onnx" for side in ("old", "new")]
            feeds = _samples(work, name.split("|")[1])
            return all(path.exists() for path in both) and same_results(*both, feeds)
        return _outcome(work / "old", name, self.forms) == _outcome(work / "new", name, self.forms)


def _reasons() -> list[Reason]:
    found = []
    for line in REASONS.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, forms, text = (part.strip() for part in re.split(r"\s{2,}", line.strip(), maxsplit=2))
            found.append(Reason(pattern, None if forms == "other" else tuple(forms.split("+")), text))
    return found


def compare(work: Path, todo: list[Job]) -> int:
    """Print what differs and why; gives the exit code."""
    reasons = _reasons()
    used: Counter[Reason] = Counter()
    counts: Counter[str] = Counter()
    for job in todo:
        name = label(job)
        old, new = _outcome(work / "old", name), _outcome(work / "new", name)
        if old == new:
            counts[f"same {old[0]}"] += 1
            continue
        reason = next((one for one in reasons if one.explains(work, name)), None)
        if reason is not None:
            used[reason] += 1
            is_known = reason.forms is not None and reason.forms != RESULTS
            counts["same but for known differences" if is_known else reason.kind] += 1
            continue
        counts["different"] += 1
        print(f"{name}\n    old: {_short(work / 'old', name)}\n    new: {_short(work / 'new', name)}")
        if old[0] == new[0] == "model":
            both = (onnx.load(work / side / f"{name}.onnx") for side in ("old", "new"))
            print(f"    {differing_parts(*both)}")
    print(", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())))
    for reason in reasons:
        print(f"  {used[reason]:5} × {reason.pattern} ({reason.kind}): {reason.text}")
    return 1 if counts["different"] else 0


def _short(out: Path, name: str) -> str:
    kind, content = _outcome(out, name)
    if kind == "error":
        return (out / f"{name}.error").read_text()[:200] if content else "nothing"
    nodes = onnx.load(out / f"{name}.onnx", load_external_data=False).graph.node
    return f"{len(content)} bytes, " + " ".join(
        f"{op}×{n}" for op, n in Counter(n.op_type for n in nodes).most_common(12)
    )


def main() -> int:
    """Run both checkouts and compare."""
    if sys.argv[1:2] == ["--worker"]:
        listing, work, out = (Path(text) for text in sys.argv[2:5])
        work_off(work, out, json.loads(listing.read_text()))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--zoo", type=Path, help="the folder of the zoo (default: none of its models)")
    parser.add_argument("--only", default="*", help="a pattern for the names of jobs")
    parser.add_argument(
        "--work", type=Path, help="keep everything here; models of OLD that are there are taken as they are"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes at a time (default: 2)")
    options = parser.parse_args()
    work = options.work.resolve() if options.work else Path(tempfile.mkdtemp(prefix="same_models."))
    work.mkdir(exist_ok=True)
    kinds = write_graphs(options.new.resolve(), work)
    zoo = write_zoo(options.zoo.resolve() if options.zoo else None, work)
    todo = [job for job in jobs(kinds, zoo) if fnmatch.fnmatchcase(label(job), options.only)]
    print(f"{len(todo)} models with each checkout, in {work}", flush=True)
    if not (work / "old").exists():
        _run(options.old.resolve(), work, work / "old", todo, options.workers)
    if (work / "new").exists():
        for path in (work / "new").iterdir():
            path.unlink()
        (work / "new").rmdir()
    _run(options.new.resolve(), work, work / "new", todo, options.workers)
    return compare(work, todo)


if __name__ == "__main__":
    raise SystemExit(main())
