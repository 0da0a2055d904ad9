"""Data that a model runs on: whatever the caller has, as checked ``{input name: array}`` samples.

=====================  ==========================================================================
``readers/``           paths, arrays, Python objects, functions: one file for each kind of data
``images/``            decoding and preprocessing of images (needs Pillow)
``source``             the protocol that all readers follow
``feeds``              samples checked against the inputs of a model
``batches``            several samples in one feed
``adjusted``           arrays scaled, normalized and transposed as they are read
``prefetch``           work in threads, some steps ahead
``shards``             samples divided among workers
``fingerprints``       samples whose content is fingerprinted as they pass by
``plausibility``       warnings about data that looks wrong
=====================  ==========================================================================
"""
