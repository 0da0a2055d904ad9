"""Models: their files, their graphs, their preparation, and the runtime that runs them.

::

    files        load, save, to_bytes, fingerprint: weights are left where they are
    graph        queries, edits, scopes, names, the canonical form
    runtime      ONNX Runtime: run, verify, limits, kernels
    prepare      shapes, constants, batch normalization, fusions, opset
    fake_quant   what training with fake quantization has left, found and taken out
"""
