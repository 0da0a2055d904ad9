"""Steps: changes to a whole model that win back accuracy; all but ``mixed-precision`` at no cost in speed.

============  ==========================================================================================
phase         a step of it
============  ==========================================================================================
``float``     changes the float model before it is planned and calibrated, and keeps what it computes
``plan``      sees what the plan does to each layer, and has it made again
``weights``   changes float weights when what they are multiplied by is known, and keeps what is computed
``ranges``    changes the ranges of activations before scales are computed from them
``integers``  changes weights and biases when all scales are known
============  ==========================================================================================

A step is one file and one line in :mod:`.registry`. It requests statistics (one pass over the data serves all
steps), estimates the error of every layer before and after, and leaves a layer alone where it does not fall.

A recipe lists steps by name, with options after colons: ``smoothquant:alpha=0.5:fold=no``. Every step takes
``min-samples=N``: with fewer samples it is left out.
"""

from octavo.algorithms.layers.subject import Refusal, Subject, Trial
from octavo.algorithms.steps.registry import (
    NAMES,
    ListedStep,
    apply,
    listed,
    observed,
    of_phase,
    opset,
    step,
    step_class,
    steps,
)
from octavo.algorithms.steps.step import Change, Phase, Step, StepReport

__all__ = [
    "NAMES",
    "Change",
    "ListedStep",
    "Phase",
    "Refusal",
    "Step",
    "StepReport",
    "Subject",
    "Trial",
    "apply",
    "listed",
    "observed",
    "of_phase",
    "opset",
    "step",
    "step_class",
    "steps",
]
