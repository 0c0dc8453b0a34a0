"""Small data sets of made-up pictures; the same every time, in the forms of the real ones."""

import numpy as np
from PIL import Image
from torch.utils.data import Dataset


class _Pictures(Dataset):
    def __init__(self, size, train, transform):
        rng = np.random.default_rng(int(train))
        self.targets = rng.integers(0, 10, size).tolist()
        self.data = rng.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
        for picture, target in zip(self.data, self.targets, strict=True):
            picture[target : target + 4] = 255
        self.transform = transform

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        picture = Image.fromarray(self.data[index])
        return self.transform(picture) if self.transform else picture, self.targets[index]


class CIFAR10(_Pictures):
    """200 pictures for training, 100 for tests."""

    def __init__(self, root, train=True, download=False, transform=None):
        super().__init__(200 if train else 100, train, transform)


class SVHN(_Pictures):
    """256 pictures."""

    def __init__(self, root, split="train", download=False, transform=None):
        super().__init__(256, split == "train", transform)
