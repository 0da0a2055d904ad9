"""The recipe that targets start from where a call names none: 8 bits, and steps that win accuracy back.

Each step pays on most models and costs neither size nor speed worth naming (docs/accuracy.md has the
measurements). It takes part from so many samples on: with fewer it would fit the model to chance.
"""

from octavo.core.recipe import W8A8

DEFAULT_STEPS = ("smoothquant:mul=0.5:min-samples=8", "clip:min-samples=32", "bias-correction:min-samples=8")

STATIC = W8A8.but(steps=DEFAULT_STEPS)
