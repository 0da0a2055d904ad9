"""Text, tables and pages for people.

====================  =================================================================================
text                  safe names, sizes, counts, aligned columns
figures               numbers with their units and intervals, in one format for all verbs
screen                text laid out for the width of a terminal
summary               what a run did, in a few lines or as a page of Markdown
…_table, …_tables     plans, trials, evaluations, measurements, comparisons, findings, ops, targets
notebook              results as a few lines of HTML
pareto                the trials as a drawing
html                  the report: one page of all that is known of a model
====================  =================================================================================
"""
