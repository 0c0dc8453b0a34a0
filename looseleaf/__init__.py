"""LooseLeaf: serverless GPUs for computational notebooks."""

__version__ = "0.1.0"
