"""Fragile patterns: what Octavo's rules keep float there, and the same model with that in 8 bits too.

"On" is the plan as Octavo makes it. "Off" is the same plan with an entry for every result of the pattern's
nodes: each goes through 8 bits as well. All else stays the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from _measure import Figures, TaskError, folder_bytes, import_octavo, open_session
from _peers import some_feeds
from _zoo import MODELS, speed_feeds, zoo_module


@dataclass(frozen=True)
class Pattern:
    """A place in a model, found among the nodes that the plan leaves float: ``NAME OP: REASON``."""

    model: str
    rule: str
    nodes: str  # a regular expression
    samples: int = 64


_SCORES = "masked scores stay float"
_PRODUCTS = "products of two activations and Softmax stay float"
_HEAD = "what only the outputs read stays float"

PATTERNS: dict[str, Pattern] = {
    "Softmax, masked scores": Pattern("all_minilm_l6_v2", _SCORES, r"scores/Add Add: "),
    "Softmax, scores before the mask": Pattern("all_minilm_l6_v2", _PRODUCTS, r"scores/Div Div: "),
    "Softmax, its result": Pattern("all_minilm_l6_v2", _PRODUCTS, r"/Softmax Softmax: "),
    "residual stream": Pattern(
        "all_minilm_l6_v2", "sums of linear layers stay float", r"(residual|embeddings/Add\w*) Add: "
    ),
    "residual stream behind its norm": Pattern(
        "all_minilm_l6_v2", "normalizations stay float", r" LayerNormalization: "
    ),
    "gated layers": Pattern("smollm2_135m", "weights and inputs in blocks behind gates", "", samples=4),
    "squeeze-and-excite": Pattern(
        "ppocrv4_rec",
        "weights beside outliers stay float, and so does the branch",
        r"p2o\.(GlobalAveragePool\.[02]|Conv\.(22|26)|Relu\.[01]|HardSigmoid\.[01]|Mul\.1(26|40)) ",
    ),
    "HardSwish": Pattern("ppocrv4_rec", "its parts stay one float operator", r"part of a HardSwish"),
    "CTC head, scores": Pattern("ppocrv4_rec", _HEAD, r"Softmax\.2_Flatten"),
    "CTC head, Softmax": Pattern("ppocrv4_rec", _HEAD, r"Softmax\.2_2d"),
    "detection head, boxes beside scores": Pattern("yolov8n", _HEAD, r"/Concat_3 "),
    "detection head, class scores": Pattern("yolov8n", _HEAD, r"22/Sigmoid "),
    "detection head, distances": Pattern("yolov8n", _HEAD, r"22/dfl/"),
    "detection head, boxes": Pattern("yolov8n", _HEAD, r"22/(Sub|Add_|Div_|Mul_)"),
}
OUTLIER = "gated layers"
SEEN = 4  # samples by which fidelity is judged


def task_fragile(payload: Figures) -> Figures:
    """Quantize one model with the rule for a pattern on or off."""
    import_octavo()
    import octavo
    from octavo.planning import outliers

    name, off = payload["pattern"], payload["side"] == "off"
    pattern = PATTERNS[name]
    source = zoo_module(payload["zoo"], "evaluate").model_path(pattern.model)
    output = Path(payload["output"])
    output.parent.mkdir(parents=True, exist_ok=True)
    if name == OUTLIER and off:
        outliers.outlier_layers = lambda nodes: frozenset()
    began = time.perf_counter()
    added = 0
    if MODELS[pattern.model].dynamic:
        octavo.quantize(source, output=output)
    else:
        plan = octavo.plan(source)
        if off:
            wider = with_pattern(plan, source, pattern)
            added, plan = len(wider.entries) - len(plan.entries), wider
        octavo.quantize(source, some_feeds(payload), plan=plan, output=output)
    seconds = time.perf_counter() - began
    return {"path": str(output), "seconds": seconds, "bytes": folder_bytes(output.parent), "entries": added}


def task_fidelity(payload: Figures) -> Figures:
    """The signal to noise ratio of the outputs, of the part that has the lowest, on a few samples."""
    import_octavo()
    from octavo.tuning.fidelity import judged, outputs_of, tallies

    model = payload["model"]
    feeds = list(islice(speed_feeds(payload["zoo"], model), SEEN))
    sessions = [open_session(path) for path in (payload["float"], payload["path"])]
    names = [output.name for output in sessions[0].get_outputs()]
    wanted, found = (
        [dict(zip(names, session.run(names, feed), strict=True)) for feed in feeds] for session in sessions
    )
    outputs = outputs_of(wanted, feeds[0])
    sums = [tallies(outputs, *three) for three in zip(wanted, found, feeds, strict=True)]
    return {"sqnr_db": judged(outputs, sums).sqnr_db}


def with_pattern(plan: Any, source: Path, pattern: Pattern) -> Any:
    """The plan with the nodes of a pattern quantized too."""
    from octavo.core.plan import Quantized
    from octavo.model.files import io
    from octavo.model.graph import query
    from octavo.model.prepare import PrepareOptions
    from octavo.pipeline.prepare import ready

    found = re.compile(pattern.nodes)
    chosen = {one.node for one in plan.skipped if found.search(f"{one.node} {one.op_type}: {one.reason}")}
    if not chosen:
        raise TaskError("the pattern matches no node that the plan leaves float")
    model = io.load(source)
    ready(model, plan.opset, PrepareOptions())
    entries, nodes = dict(plan.entries), dict(plan.nodes)
    for node in query.nodes(model):
        if node.name in chosen:
            nodes[node.name] = Quantized(node.op_type, node.op_type)
            entries.update(entry for entry in node_entries(node, plan) if entry[0] not in entries)
    kept = tuple(one for one in plan.skipped if one.node not in chosen)
    return replace(plan, entries=entries, nodes=nodes, skipped=kept)


def node_entries(node: Any, plan: Any) -> Iterator[tuple[Any, Any]]:
    """An entry for all that a node writes in floats; of a Conv, also for its input and its weight."""
    import octavo
    from octavo.core.plan import Constant, Key, Measured
    from octavo.model.graph import query

    measured = Measured(octavo.W8A8.activations)
    for value in node.outputs:
        if query.is_float(value):
            yield Key(value.name), measured
    if node.op_type == "Conv":
        x, weight = node.inputs[:2]
        yield Key(weight.name, node.name), Constant(octavo.W8A8.weights.but(granularity=octavo.PerChannel(0)))
        if Key(x.name) not in plan.entries:
            yield Key(x.name, node.name), measured
