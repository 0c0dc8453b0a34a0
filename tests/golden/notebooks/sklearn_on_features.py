# scikit-learn on features that a network makes on the GPU: pipelines, metrics, models that are used again later.
# gpu-cells: 17
# %% setup
import numpy as np
import pandas as pd
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score, classification_report, confusion_matrix
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
torch.manual_seed(0)
device = "cuda"
# %% data
digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(digits.data / 16, digits.target, test_size=0.25, random_state=0)
X_train.shape, X_test.shape, digits.keys()
# %% encoder
encoder = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16)).to(device)
decoder = nn.Linear(16, 64).to(device)
opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=5e-3)
inputs = torch.tensor(X_train, dtype=torch.float32, device=device)
for epoch in range(30):
    loss = nn.functional.mse_loss(decoder(encoder(inputs)), inputs)
    opt.zero_grad(); loss.backward(); opt.step()
print(f"reconstruction {loss.item():.4f}")
# %% features
def features(X):
    with torch.no_grad():
        return encoder(torch.as_tensor(X, dtype=torch.float32, device=device)).cpu().numpy()

F_train, F_test = features(X_train), features(X_test)
F_train.shape, F_train.dtype
# %% classifier
clf = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
clf.fit(F_train, y_train)
clf
# %% score
round(accuracy_score(y_test, clf.predict(F_test)), 3)
# %% score-on-gpu-features
print(classification_report(y_test, clf.predict(features(X_test)), digits=3))
# %% forest gpu
forest = RandomForestClassifier(20, random_state=0, n_jobs=1).fit(F_train, y_train)
round(forest.score(F_test, y_test), 3)
# %% forest-here
importances = pd.Series(forest.feature_importances_).nlargest(3).round(3)
importances, forest.estimators_[0].get_depth(), forest.classes_
# %% forest-gpu-again gpu
forest.set_params(n_estimators=25, warm_start=True)
forest.fit(F_train, y_train)
len(forest.estimators_), forest.predict_proba(F_test[:2]).round(2)
# %% forest-after
len(forest.estimators_), forest.get_params()["warm_start"]
# %% grid gpu
grid = GridSearchCV(LogisticRegression(max_iter=200), {"C": [0.1, 1.0, 10.0]}, cv=3)
grid.fit(F_train, y_train)
grid.best_params_, round(grid.best_score_, 3)
# %% grid-here
pd.DataFrame(grid.cv_results_)[["param_C", "mean_test_score", "rank_test_score"]].round(3)
# %% grid-shown gpu
print(grid.best_estimator_)
grid.best_estimator_.coef_.shape
# %% cross-val
cross_val_score(clf, F_train, y_train, cv=3).round(3)
# %% confusion gpu
matrix = confusion_matrix(y_test, forest.predict(F_test))
matrix.diagonal() / matrix.sum(1).round(2)
# %% confusion-plot gpu
%matplotlib inline
import matplotlib.pyplot as plt
shown = ConfusionMatrixDisplay(matrix)
fig, ax = plt.subplots(figsize=(4, 4))
shown.plot(ax=ax, colorbar=False);
# %% kmeans
km = KMeans(10, n_init=3, random_state=0).fit(features(X_train))
labels = torch.tensor(km.labels_, device=device)
labels.bincount()
# %% kmeans-centers-on-gpu
centers = torch.tensor(km.cluster_centers_, device=device)
nearest = torch.cdist(encoder(inputs), centers.float()).argmin(1)
(nearest == labels).float().mean().item() > 0.99
# %% own-estimator
from sklearn.base import BaseEstimator, TransformerMixin
class Encoded(BaseEstimator, TransformerMixin):
    def __init__(self, scale=1.0):
        self.scale = scale
    def fit(self, X, y=None):
        self.n_ = len(X)
        return self
    def transform(self, X):
        return features(X) * self.scale

pipe = make_pipeline(Encoded(scale=2.0), StandardScaler(), LogisticRegression(max_iter=300))
# %% own-estimator-fit
pipe.fit(X_train, y_train).score(X_test, y_test) > 0.8
# %% own-estimator-later
pipe[0].n_, pipe.get_params()["encoded__scale"], pipe.named_steps["logisticregression"].coef_.shape
# %% own-estimator-predict
pipe.predict(X_test[:8])
# %% random-state gpu
rs = np.random.RandomState(3)
print(rs.randint(0, 100, 3))
# %% random-state-here
print(rs.randint(0, 100, 3), np.random.RandomState(3).randint(0, 100, 6))
# %% not-fitted gpu raises
LogisticRegression().predict(F_test)
