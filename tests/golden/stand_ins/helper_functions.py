"""Plots that a course's notebooks get from a file of this name."""

import matplotlib.pyplot as plt
import numpy as np
import torch


def plot_predictions(train_data, train_labels, test_data, test_labels, predictions=None):
    """Training, test and predicted points."""
    plt.figure(figsize=(6, 4))
    plt.scatter(train_data, train_labels, s=4, label="train")
    plt.scatter(test_data, test_labels, s=4, label="test")
    if predictions is not None:
        plt.scatter(test_data, predictions, s=4, label="predicted")
    plt.legend()


def plot_decision_boundary(model, points, y):
    """What the model says over the plane of the points, with them."""
    model.to("cpu")
    points, y = points.to("cpu"), y.to("cpu")
    low, high = points.min(0).values - 0.1, points.max(0).values + 0.1
    xs, ys = (np.linspace(low[i].item(), high[i].item(), 40) for i in (0, 1))
    xx, yy = np.meshgrid(xs, ys)
    grid = torch.from_numpy(np.column_stack([xx.ravel(), yy.ravel()])).float()
    model.eval()
    with torch.inference_mode():
        logits = model(grid)
    many = len(torch.unique(y)) > 2
    shown = logits.softmax(1).argmax(1) if many else torch.round(torch.sigmoid(logits))
    plt.contourf(xx, yy, shown.reshape(xx.shape).numpy(), alpha=0.6)
    plt.scatter(points[:, 0], points[:, 1], c=y, s=8)
