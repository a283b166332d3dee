"""What the scripts share: data sets, jobs and their files, tables, figures, timing.

They stop solvers on purpose and print the gaps that were reached; a warning for each would say nothing new.
"""

import warnings

import sparsejax as sj

warnings.simplefilter("ignore", sj.ConvergenceWarning)
