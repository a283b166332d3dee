"""Matrices that are not an array on one device: sparse, read in batches, or sharded over devices."""
