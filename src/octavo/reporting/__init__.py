"""Words and tables for people.

==============  =============================================================
text            safe names, sizes, counts, aligned columns
summary         what a run did, in a few lines or as a page of Markdown
plans           a plan: what becomes what, and what stays float
inspection      how a model is quantized
tables          the op table and the targets, also as documentation
==============  =============================================================
"""
