"""From a float model to a verified quantized one, stage by stage.

::

    load → prepare → plan → calibrate → resolve → emit → verify
                       ▲        │           │
                       └────────┴───────────┘   again, around what numbers or steps rule out

Each stage is a small file. Doors hand in what they know: a recipe or a plan (:mod:`.by_recipe`), trained
parameters (:mod:`.trained`), parameters that the caller gives (:mod:`.given`). All settings that do not
change what comes out are one :class:`Run`.
"""

from octavo.pipeline.by_recipe import carry_out, prepared, quantize
from octavo.pipeline.calibrate import (
    Calibrated,
    KnownStatistics,
    observe,
    samples_of,
    schemes,
)
from octavo.pipeline.finish import finish
from octavo.pipeline.half_precision import with_half
from octavo.pipeline.options import (
    Destination,
    Options,
    Run,
    run_of,
)
from octavo.pipeline.plan import Planned, planned
from octavo.pipeline.prepare import (
    LEAST_OPSET,
    UNCHANGED,
    PreparedModel,
    needed_opset,
    prepare_name,
    ready,
)

__all__ = [
    "LEAST_OPSET",
    "UNCHANGED",
    "Calibrated",
    "Destination",
    "KnownStatistics",
    "Options",
    "Planned",
    "PreparedModel",
    "Run",
    "carry_out",
    "finish",
    "needed_opset",
    "observe",
    "planned",
    "prepare_name",
    "prepared",
    "quantize",
    "ready",
    "run_of",
    "samples_of",
    "schemes",
    "with_half",
]
