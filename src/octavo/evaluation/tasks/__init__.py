"""The built-in tasks, one file each; :mod:`octavo.evaluation.registry` lists them by name."""
