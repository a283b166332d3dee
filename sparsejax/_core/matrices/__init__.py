"""Matrices that are no arrays on one device: sparse, read in chunks, spread over devices."""
