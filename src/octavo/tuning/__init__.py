"""The automatic choice: a few sensible ways to quantize a model, tried and measured, and the best of them.

Statistics are collected once; every trial reads its ranges off them. Part of the data is held back: it is
what trials are judged on.
"""
