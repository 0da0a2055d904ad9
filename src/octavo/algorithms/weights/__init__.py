"""Weight algorithms: integers, scales and zero points of one weight; arrays in, arrays out, a file each.

::

    rtn          round to nearest over the range of each block
    furthest     round to nearest, the value furthest from zero on the outermost integer
    hqq          zero points moved so that few weights carry the error
    k-quant      scale and zero point by least squares, large weights count more
    importance   scale and zero point by least squares, weights of large inputs count more; needs data
    gptq         each rounding error compensated by later columns; needs data

A recipe and a plan name one as ``name:option=value:…`` (:mod:`.registry`). ``bnb4`` has the FP4 and NF4 codes
of bitsandbytes, which are not integers.
"""
