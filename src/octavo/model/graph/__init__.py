"""The graph of a model: queries, edits, scopes, names, and the one canonical form."""
