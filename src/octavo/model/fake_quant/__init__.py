"""Fake quantization, as training leaves it in a model: found in all its forms, and taken out.

::

    pairs       QuantizeLinear → (Clip) → DequantizeLinear, and stored integers → DequantizeLinear
    operators   FakeQuant and similar ones, of other domains
    chains      Div, Round, Clip, Mul in their many orders
    peel        the float model without them, and the parameters that they had
    scaled      what stands between a convolution and its fake quantization, folded into it
"""
