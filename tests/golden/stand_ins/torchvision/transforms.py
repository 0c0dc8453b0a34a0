"""The transforms that the notebooks use, with torch's random numbers."""

import numpy as np
import torch
from PIL import Image


class Compose:
    """One after the other."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, picture):
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    """A picture as floats from 0 to 1, channels first."""

    def __call__(self, picture):
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


class Normalize:
    """Channel by channel (x - mean) / std."""

    def __init__(self, mean, std):
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))

    def __call__(self, picture):
        return (picture - self.mean) / self.std


class RandomHorizontalFlip:
    """Half of the pictures, mirrored."""

    def __call__(self, picture):
        return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(1) < 0.5 else picture


class RandomRotation:
    """By up to so many degrees."""

    def __init__(self, degrees):
        self.degrees = degrees

    def __call__(self, picture):
        return picture.rotate(float(torch.empty(1).uniform_(-self.degrees, self.degrees)))
