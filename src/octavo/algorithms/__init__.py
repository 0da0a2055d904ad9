"""Algorithms that choose numbers: of weights alone, and of a whole model.

::

    weights/   integers, scales and zero points of one weight: arrays in, arrays out, a file each
    steps/     changes to a whole model that win back accuracy, a file each
    layers/    what steps share: a layer as a matrix, the statistics of its inputs, the errors of its outputs
"""
