"""Models: reading and writing their files, their structure, and the runtime that runs them.

::

    io          load, save, to_bytes, fingerprint: files in, files out, weights left where they are
    normalize   one canonical form; everything else relies on it
    query       questions: constants, readers, scopes, shapes, kinds of models
    edit        changes that keep the canonical form
    prepare     shapes, constants, batch normalization, fusions, opset
    session     ONNX Runtime: run, verify, limits, kernels
"""
