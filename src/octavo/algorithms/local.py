"""Local errors: what quantization does to each layer by itself, measured by replicas (:mod:`.replica`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo.algorithms.feedback import nearest
from octavo.algorithms.inputs import total
from octavo.algorithms.quantized import QuantizedLayer
from octavo.algorithms.replica import Replica, Steps
from octavo.algorithms.steps import Subject
from octavo.algorithms.wishes import PREFIX


@dataclass(frozen=True)
class LocalError:
    """What was measured of a replica."""

    share: float  # of the squared result that is error
    work: float  # products that the layer computes

    @property
    def sqnr(self) -> float:
        """Signal to noise in dB."""
        return float(-10.0 * np.log10(max(self.share, 1e-30)))


def replica_of(one: QuantizedLayer, subject: Subject) -> Replica:
    """The copy of a quantized layer, with the parameters as they are now."""
    layer, rows = one.layer, one.layer.rows()
    key = subject.plan.lookup(layer.x.name or "", layer.name)
    params = subject.params.get(key) if subject.params is not None and key is not None else None
    return Replica(layer.name, layer, layer.laid_out(nearest(rows, one.grid(rows))), Steps.of(params))


def local_error(replica: Replica, stats: Mapping[str, object]) -> LocalError | None:
    """What statistics say of a replica; None where it was not observed."""
    names = (replica.noise, replica.signal, replica.size)
    noise, signal, size = (total(stats, PREFIX + name) for name in names)
    if noise is None or signal is None or size is None or not float(signal) > 0:
        return None
    return LocalError(float(noise) / float(signal), float(size) * replica.layer.products)
