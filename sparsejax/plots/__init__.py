r"""Pictures of this library's results, by matplotlib (``python -m pip install matplotlib``).

Each function draws one picture into ``ax``, or into a new pyplot figure if ``ax`` is None, and returns the
`matplotlib.axes.Axes`, whose titles, labels and limits the caller may change. It changes no settings of
matplotlib, opens no window and writes no file.

Lines have the colours of Okabe & Ito, which colour-blind readers can tell apart, and differ in marker and
dash as well. Maps of weights are in viridis and maps of correlations in blues: lightness alone tells values
apart. Features whose weights are all exactly zero are not drawn: a path shows those that are nonzero
at some strength, and a map is hatched where it is zero.

matplotlib is imported when the first picture is drawn. The functions cannot be called inside jit.
"""

from sparsejax.plots._matrices import correlation, support
from sparsejax.plots._solves import convergence, tuning
from sparsejax.plots._strengths import cross_validation, path, stability

__all__ = ["convergence", "correlation", "cross_validation", "path", "stability", "support", "tuning"]
