"""Notebooks run from first to last cell, as `looseleaf run` does: the client, its report, its tables."""
