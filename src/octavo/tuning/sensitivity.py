"""Which layers lose most: each quantized layer alone, on float inputs, all of them in one run.

``compare`` replays every quantized unit of a model side by side on the tensors of the float model. One such
run over a few samples gives the local error of all layers; no model is made or run for a layer by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from octavo.comparison import data_pass, match
from octavo.core import scratch
from octavo.core.plan import Plan
from octavo.core.progress import Progress, silent
from octavo.model.files import io
from octavo.model.runtime.session_inputs import with_mapped_weights
from octavo.tuning.split import Feed

SAMPLES = 4  # of those given, that each layer is tried on


@dataclass(frozen=True)
class Layer:
    """A quantized layer and what it loses by itself."""

    node: str
    op_type: str
    sqnr_db: float  # of its result, on float inputs

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"node": self.node, "op_type": self.op_type, "sqnr_db": self.sqnr_db}


def sensitivity(
    model: io.ModelSource,
    quantized: Path,
    plan: Plan,
    samples: Sequence[Feed],
    threads: int | None,
    progress: Progress = silent,
) -> tuple[Layer, ...]:
    """The layers of a plan by their local error, the weakest first; ties in the order of the network."""
    with scratch.folder() as folder:
        found, _ = match.best_match(model, with_mapped_weights(match.plain(quantized), lambda: folder))
        if not found.pairs:
            return ()
        few = list(samples[:SAMPLES])
        seen = data_pass.run_both(found, few, threads=threads, progress=partial(progress, "layers"))
        worst: dict[str, Layer] = {}
        for pair, watch in seen.pairs.items():
            errors, node = watch.local.errors(watch.power), pair.float_unit.name
            if errors is None or node not in plan.nodes:
                continue
            layer = Layer(node, pair.float_unit.node.op_type, float(errors.sqnr))
            if node not in worst or layer.sqnr_db < worst[node].sqnr_db:
                worst[node] = layer
    return tuple(sorted(worst.values(), key=lambda layer: layer.sqnr_db))
