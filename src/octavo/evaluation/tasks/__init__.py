"""The built-in tasks, one file each; :mod:`octavo.evaluation.task_registry` lists them by name."""
