"""The tasks, a file each; :mod:`octavo.evaluation.registry` names them."""
