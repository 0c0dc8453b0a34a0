"""scikit-learn's small digits, enlarged to 28 x 28, in the form of torchvision's MNIST."""

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import Dataset


class MNIST(Dataset):
    """512 digits for training, 128 for tests."""

    def __init__(self, root, download=False, train=True, transform=None):
        digits = load_digits()
        chosen = slice(0, 512) if train else slice(512, 640)
        pictures = [
            np.array(Image.fromarray((picture * 15).astype(np.uint8)).resize((28, 28)))
            for picture in digits.images[chosen]
        ]
        self.train_data = self.test_data = torch.from_numpy(np.stack(pictures))
        self.train_labels = self.test_labels = torch.from_numpy(digits.target[chosen])
        self.transform = transform

    def __len__(self):
        return len(self.train_data)

    def __getitem__(self, index):
        picture = Image.fromarray(self.train_data[index].numpy())
        return self.transform(picture) if self.transform else picture, int(self.train_labels[index])
