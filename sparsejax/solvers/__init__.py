"""Solvers, one algorithm a file, all ``(problem, init=None, *, tol, maxiter, history) -> Solution``."""
