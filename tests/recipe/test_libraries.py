"""What libraries do with the GPU of their own accord, and what they give back."""

from __future__ import annotations

import pytest

KERAS = "from tensorflow import keras\nimport tensorflow as tf"
TORCH = "import torch\nimport torch.nn as nn"
JAX = "import jax\nimport jax.numpy as jnp"
XGB = "import xgboost as xgb\nfrom xgboost import XGBClassifier"
HF = "from transformers import Trainer, pipeline, TFBertModel, AutoTokenizer"
MODEL = "m = keras.Sequential([keras.layers.Dense(2)])"


@pytest.mark.parametrize(
    "cells",
    [
        # parameters that choose the GPU reach the call by many ways
        [XGB, "p = {}\np['tree_method'] = 'gpu_hist'", "b = xgb.train(p, d)"],
        [XGB, "p = {}\np.update({'tree_method': 'gpu_hist'})", "b = xgb.train(p, d)"],
        [XGB, "q = {'device': 'cuda'}\np = study.best_params\np.update(q)", "b = xgb.train(p, d)"],
        [XGB, "q = {'device': 'cuda'}\np = {'eta': 1, **q}", "b = xgb.train(p, d)"],
        [XGB, "q = {'device': 'cuda'}\np = {'eta': 1} | q", "b = xgb.train(p, d)"],
        [XGB, "q = {'device': 'cuda'}\np = q.copy()\np['eta'] = n", "b = xgb.train(p, d)"],
        [XGB, "q = {'device': 'cuda'}\nimport copy\np = copy.deepcopy(q)", "b = xgb.train(p, d)"],
        [XGB, "p = {'eta': 1}\nif n: p['device'] = 'cuda'", "b = xgb.train(p, d)"],
        [XGB, "p = make()\np['device'] = 'cuda'", "b = xgb.train(p, d)"],
        [XGB, "p = {}\np.update(device='cuda')", "XGBClassifier(**p).fit(X, y)"],
        ["import lightgbm as lgb", "c = lgb.LGBMClassifier(device='gpu')", "c.fit(X, y)"],
        ["from catboost import CatBoostClassifier as C", "c = C(task_type='GPU', devices='0')", "c.fit(X, y)"],
        # what was trained there predicts there
        [XGB, "b = xgb.train({'device': 'cuda'}, d)", "p = b.predict(d)"],
        [XGB, "ms = [('a', XGBClassifier(device='cuda')), ('b', lgb)]\nbest = ms[i][1]", "best.fit(X, y)"],
        [XGB, "ms = {'a': XGBClassifier(device='cuda')}", "for m in ms.values(): m.fit(X, y)"],
        [XGB, "ms = []\nms.append(XGBClassifier(device='cuda'))", "for m in ms: m.fit(X, y)"],
        # a model within a model
        [XGB + "\nfrom sklearn.pipeline import Pipeline", "p = Pipeline([('m', XGBClassifier(device='cuda'))])",
         "p.fit(X, y)"],
        [XGB + "\nfrom sklearn.model_selection import cross_val_score as cv", "m = XGBClassifier(device='cuda')",
         "cv(m, X, y)"],
        # Keras and TensorFlow
        [KERAS, "x = tf.constant([1.0])"],
        [KERAS, MODEL, "h = m.fit(x, y)"],
        [KERAS, "i = keras.Input((2,))", "o = keras.layers.Dense(2)(i)"],
        [KERAS, "class M(keras.Model):\n  pass\nm = M()", "m.fit(x, y)"],
        [KERAS, "class B(keras.Model): pass", "class M(B): pass", "M().predict(x)"],
        [HF, "b = TFBertModel.from_pretrained('b')"],
        # JAX
        [JAX, "from jax.experimental import pallas as pl", "pl.pallas_call(k, out_shape=s)()"],
        [JAX, "import train", "s = train.train_and_evaluate(c)"],
        # Trainers move the model that they are given
        [HF, "m = load()", "t = Trainer(model=m, args=a)"],
        [HF, "m = load()\nt = Trainer(m, a)", "m(x)"],
        [HF, "t = Trainer(m, a)", "t.train()"],
        [HF, "t = Trainer(m, a)\no = t.model(**b)", "o.logits.argmax()"],
        [HF, "class T(Trainer): pass", "t = T(model=m)"],
        [HF, "class T(Trainer): pass\nt = T(model=m)", "t.train()"],
        ["from layouts.trainers import XfunTrainer as T", "t = T(model=m)", "t.train()"],
        [KERAS, "keras.metrics.categorical_accuracy(y, p)"],
        [TORCH, "d = 'mps' if torch.backends.mps.is_available() else 'cuda'", "x.to(d)"],
        [TORCH, "d = 'mps' if getattr(torch, 'has_mps', False) else 'cuda'", "x.to(d)"],
        [HF, "p = pipeline('ner', device=0)"],
        ["import torch\n" + HF, "d = 0 if torch.cuda.is_available() else -1", "p = pipeline('ner', device=d)"],
        ["import torch", HF, "p = pipeline('ner', device=0 if torch.cuda.is_available() else -1)"],
        # new tensors are made on the default device
        [TORCH, "torch.set_default_device('cuda')", "x = torch.zeros(3)"],
        [TORCH, "torch.set_default_tensor_type('torch.cuda.FloatTensor')", "m = nn.Linear(2, 2)"],
        [TORCH, "with torch.device('cuda'):\n  m = nn.Linear(2, 2)"],
        # containers hold what is put in
        [TORCH, "x = torch.zeros(3).cuda()\nxs = []\nxs.append(x)", "xs[0] + 1"],
        [TORCH, "x = torch.zeros(3).cuda()\nd = {}\nd['a'] = x", "d['a'] + 1"],
        [TORCH, "x = torch.zeros(3).cuda()\nd = {'a': []}\nd['a'].append(x)", "torch.cat(d['a'])"],
        # a file that was saved from the GPU
        [TORCH, "m = nn.Linear(2, 2).cuda()\nP = 'a.pt'\ntorch.save(m.state_dict(), P)", "s = torch.load(P)"],
        [TORCH, "m = nn.Linear(2, 2).cuda()", "torch.save(m, out / 'a')", "s = torch.load(out / 'a')"],
        # shell
        ["!python -c \"import torch; print(torch.cuda.is_available())\""],
        ["!python train.py --epochs 3"],
        ["%%bash\npython -m torch.distributed.launch x.py"],
        ["!torchrun x.py"],
        ["!python run.py --gpu 0"],
        ["!python -c \"import torch; torch.zeros(1).cuda()\""],
        ["%%writefile a.py\nimport torch\nprint(torch.zeros(1).cuda())", "!python a.py"],
    ],
)  # fmt: skip
def test_library_uses_the_gpu(ask, cells: list[str]) -> None:
    *earlier, target = cells
    recipe = ask(target, *earlier).recipe
    assert recipe.label == "gpu", recipe.reason


@pytest.mark.parametrize(
    "cells",
    [
        [XGB, "p = {'device': 'cuda'}\np['device'] = 'cpu'", "b = xgb.train(p, d)"],
        [XGB, "p = {'eta': 1}\nif n: p['eta'] = 2", "b = xgb.train(p, d)"],
        [XGB, "c = XGBClassifier(device='cuda')"],
        [XGB, "b = xgb.train({'device': 'cuda'}, d)\np = b.predict(d)", "p.mean()"],
        [XGB, "c = XGBClassifier()", "c.fit(X, y)"],
        [TORCH, "d = 'cuda' if torch.backends.mps.is_built() else 'cpu'", "x.to(d)"],
        # results on the host
        [KERAS, MODEL, "h = m.fit(x, y)", "plt.plot(h.history['loss'])"],
        [KERAS, MODEL, "p = m.predict(x)", "p.argmax()"],
        [KERAS, MODEL, "score = m.evaluate(x, y)", "print(score[0])"],
        [KERAS, "(a, b), (c, d) = keras.datasets.mnist.load_data()", "a / 255"],
        [KERAS, "i = keras.Input((2,))"],
        [KERAS, "ds = tf.data.Dataset.from_tensor_slices(x).map(lambda v: tf.cast(v, tf.float32)).batch(2)"],
        [KERAS, "ds = keras.utils.image_dataset_from_directory('a')", "ds = ds.map(lambda v: tf.cast(v, tf.int8))"],
        [KERAS, "x = keras.applications.vgg16.preprocess_input(x)"],
        [KERAS, "s = tf.distribute.get_strategy()", "s.num_replicas_in_sync"],
        [HF, "t = Trainer(m, a)", "r = t.evaluate()", "print(r['eval_loss'])"],
        [HF, "t = Trainer(m, a)\nr = t.predict(d)", "r.predictions.argmax()"],
        [HF, "p = pipeline('ner', device=-1)", "p('a')"],
        ["import torch", HF, "p = pipeline('ner', device=0)\nr = p('a')", "print(r)"],
        [HF, "tok = AutoTokenizer.from_pretrained('a')", "import torch\nx = torch.ones(1).cuda()\ns = tok.decode(x)",
         "print(s)"],
        [JAX, "x = jnp.zeros(3)\ny = jax.device_get(x)", "y + 1"],
        [JAX, "jax.make_mesh((2, 1), ('a', 'b'))"],
        [TORCH, "torch.set_default_device('cuda')\ntorch.set_default_device('cpu')", "x = torch.zeros(3)"],
        [TORCH, "with torch.device('cuda'):\n  m = nn.Linear(2, 2)", "x = torch.zeros(3)"],
        [TORCH, "x = torch.zeros(3).cuda()\nxs = []\nxs.append(x.item())", "sum(xs)"],
        # a file that was saved from the host, in a session with a GPU
        [TORCH, "d = 'cuda'\nm = nn.Linear(2, 2)\ntorch.save(m.state_dict(), 'a.pt')", "s = torch.load('a.pt')"],
        [TORCH, "d = 'cuda'\nn = nn.Linear(2, 2)\ntorch.save(n, p)", "n.load_state_dict(torch.load(p))"],
        [TORCH, "import helpers", "r = helpers.evaluate(m)"],
        # shell
        ["!python prepare.py"],
        ["!python train.py --device cpu"],
        ["!python train.py --no-cuda"],
        ["!python -c \"import torch; print(torch.version.cuda)\""],
        ["!python -c \"import torch; print(torch.device('cpu'))\""],
        ["%%writefile train.py\nprint('nothing')", "!python train.py"],
        ["!pip install cupy-cuda12x"],
    ],
)  # fmt: skip
def test_library_works_on_the_host(ask, cells: list[str]) -> None:
    *earlier, target = cells
    recipe = ask(target, *earlier).recipe
    assert recipe.label == "cpu", recipe.reason


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([TORCH, "torch.cuda.is_available()"], "query"),
        ([TORCH, "gpu_time = 3", "print(gpu_time)"], "none"),
        (["!nvidia-smi"], "shell"),
        (["!nvcc --version"], "shell"),
        (["!python train.py"], "shell"),
        # in a process of its own nobody answers for the pool
        (["!python -c \"import torch; print(torch.cuda.is_available())\""], "shell"),
        (["%%writefile a.py\nimport torch\nprint(torch.cuda.device_count())", "!python a.py"], "shell"),
        ([TORCH, "m = nn.Linear(2, 2).cuda()", "o = torch.optim.SGD(m.parameters())"], "resident"),
        ([TORCH, "m = nn.Linear(2, 2).cuda()", "print(m)"], "resident"),
        ([TORCH, "m = nn.Linear(2, 2).cuda()", "m(x)"], "compute"),
        ([TORCH, "x = torch.zeros(1).cuda()", "y = x + 1"], "compute"),
        ([TORCH, "x = torch.zeros(1).cuda()", "x.mean()"], "compute"),
        ([TORCH, "x = torch.zeros(1).cuda()"], "compute"),
    ],
)
def test_label_says_what_kind_of_use_it_is(ask, cells: list[str], kind: str) -> None:
    *earlier, target = cells
    assert ask(target, *earlier).label.kind == kind


@pytest.mark.parametrize(
    ("cells", "target", "kind"),
    [
        (["from transformers import Trainer\ntrainer = Trainer(model)"], "trainer.train()", "compute"),
        (["import torch\nnet = torch.nn.Linear(1, 1).cuda()"], "net.train()", "resident"),
    ],
)
def test_train_of_a_trainer_computes_and_of_a_module_sets_a_mode(
    ask, cells: list[str], target: str, kind: str
) -> None:
    assert ask(target, *cells).label.kind == kind
