"""Stands for torchvision, which has no build for the torch that the tests install: made-up pictures, few transforms."""

from torchvision import datasets, transforms

__all__ = ["datasets", "transforms"]
