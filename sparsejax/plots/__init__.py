r"""Pictures of what this library returns, by matplotlib (``pip install "sparsejax[plots]"``).

Each function draws one picture into ``ax``, or into a new figure of pyplot where that is None, and returns
the `matplotlib.axes.Axes`, on which titles, labels and limits are the caller's to change. Nothing else is
touched: no settings of matplotlib, no window, no file.

Colours are those of Okabe & Ito, which colour-blind readers can tell apart, and lines differ in marker and
dash as well; maps are in viridis, whose lightness alone tells values apart. Weights that are exactly zero are
not drawn: a path shows the features that are kept at some strength, and a map is hatched where it is zero.

matplotlib is imported when the first picture is drawn; nothing here is for inside jit.
"""

from sparsejax.plots._matrices import correlation, support
from sparsejax.plots._solves import convergence, tuning
from sparsejax.plots._strengths import cross_validation, path, stability

__all__ = ["convergence", "correlation", "cross_validation", "path", "stability", "support", "tuning"]
