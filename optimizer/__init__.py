"""How the best configurations are found: workload, engines, trials, workers, study, reports."""

__version__ = "0.1.0"

import sys

if sys.argv[:1] == ["-m"]:  # `python -m optimizer.X` is still locating X, which may import a shadowed package
    from optimizer.identity import stop_if_shadowed

    stop_if_shadowed()
