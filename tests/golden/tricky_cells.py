"""Cells that are easily shown differently when they run elsewhere; each with the device that its settings ask for."""

from __future__ import annotations

# (device or "", text)
Cell = tuple[str, str]

BASICS: list[Cell] = [
    (
        "",
        (
            'import sys, torch\n'
            'from torch import nn\n'
            'torch.manual_seed(5)\n'
            'def broken(t):\n'
            '    u = t + 1\n'
            '    return u[99]'
        ),
    ),
    ("", "x = torch.arange(4.0, device='cuda')\nx"),
    ("", '_'),
    ("", "print('a'); print('b', file=sys.stderr); print('c')\nx * 2"),
    ("", 'broken(x)'),
    ("", '%%time\nx += 1\nprint(x)'),
    ("", 'loss = (x ** 2).mean()\nloss'),
    ("", "loss.item(), float(loss), f'{loss:.3f}', x.shape, x.device, len(x)"),
    ("", 'print(x)\nloss'),
    ("", "torch.rand(2), torch.rand(2, device='cuda')"),
    ("", 'torch.rand(2)'),
    ("", "%%capture text\nprint('hidden', x.sum())"),
    ("", 'text.stdout'),
    ("", 'raise SystemExit'),
    (
        "",
        (
            'class P:\n'
            '    def __init__(self, t): self.t = t\n'
            "    def __repr__(self): return f'P({self.t})'\n"
            'p = P(x)\n'
            'p'
        ),
    ),
    ("", 'p.t is x, p'),
    ("", 'y = x.view(2, 2)\ny[0, 0] = 7\nx'),
    ("", "del y\n'y' in globals()"),
    ("", "for i in range(3):\n    print(i, end=' ', flush=True)\n    sys.stderr.write('e')"),
    ("", "import os\nos.environ['GOLDEN'] = '1'\nx.cpu().numpy()"),
    ("", "x.add_(1)\nos.environ['GOLDEN'], os.getcwd() == os.path.abspath('.')"),
]

LIBRARIES: list[Cell] = [
    (
        "",
        (
            'import matplotlib.pyplot as plt, numpy as np, pandas as pd, torch\n'
            'from torch import nn\n'
            'from torch.utils.data import DataLoader, TensorDataset\n'
            'torch.manual_seed(0); np.random.seed(0)'
        ),
    ),
    ("gpu", "plt.plot([1,2,3]); plt.title('on gpu'); plt.show()"),
    ("gpu", "pd.DataFrame({'a': np.arange(3), 'b': list('xyz')})"),
    (
        "gpu",
        (
            'def gpu_defined(n):\n'
            '    # a comment\n'
            '    if n == 0:\n'
            "        raise KeyError('deep')\n"
            '    return gpu_defined(n - 1)'
        ),
    ),
    ("", 'gpu_defined(3)'),
    ("", 'def cpu_defined(n):\n    return gpu_defined(n)'),
    ("gpu", 'cpu_defined(1)'),
    (
        "",
        (
            'ds = TensorDataset(torch.randn(40, 3), torch.randint(2, (40,)))\n'
            'loader = DataLoader(ds, batch_size=10, shuffle=True)'
        ),
    ),
    (
        "",
        (
            'model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)).cuda()\n'
            'opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n'
            'sched = torch.optim.lr_scheduler.StepLR(opt, 2)\n'
            'model'
        ),
    ),
    (
        "",
        (
            'for epoch in range(2):\n'
            '    for x, y in loader:\n'
            '        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())\n'
            '        opt.zero_grad(); loss.backward(); opt.step()\n'
            '    sched.step()\n'
            "    print(epoch, f'{loss.item():.4f}', sched.get_last_lr())"
        ),
    ),
    ("", 'loss'),
    ("", 'sd = {k: v.cpu() for k, v in model.state_dict().items()}\nlist(sd)'),
    ("", "sd['0.weight']"),
    ("", 'model.eval()\nwith torch.no_grad():\n    out = model(ds.tensors[0].cuda())\nout.argmax(1)'),
    ("", 'out.argmax(1).cpu().numpy().sum(), type(out)'),
    ("", 'np.random.rand(2), torch.rand(2)'),
    ("gpu", 'np.random.rand(2), torch.rand(2)'),
    ("", 'np.random.rand(2), torch.rand(2)'),
    ("", "import warnings\nwarnings.warn('careful')"),
    ("gpu", "warnings.warn('careful')"),
    (
        "",
        (
            "with torch.autocast('cuda', dtype=torch.bfloat16):\n"
            "    z = torch.ones(2, 2, device='cuda') @ torch.ones(2, 2, device='cuda')\n"
            'z, z.dtype'
        ),
    ),
    ("", 'class Holder:\n    pass\nh = Holder(); h.t = out; h.me = h\nh.t.shape'),
    ("", 'h.me is h, h.t is out'),
    ("gpu", "assert False, 'no'"),
    ("", '!echo shell'),
    ("gpu", '!echo shell gpu'),
    ("", '%%bash\necho bash'),
    ("", "a, b = torch.ones(2, device='cuda'), 3\na; b"),
    ("", 'x = 5\nx?'),
    ("", "import logging\nlogging.warning('logged')"),
    ("gpu", "import logging\nlogging.warning('logged gpu')"),
    ("", "print(f'{loss:.3f} {loss}')\nloss.device.type, loss.requires_grad"),
    ("", "from IPython.display import display, HTML, Markdown\ndisplay(HTML('<b>x</b>'), Markdown('*y*'))"),
    ("gpu", "display(HTML('<b>x</b>'), Markdown('*y*'))\nh = display('first', display_id='k')"),
    ("gpu", 'import sys\nsys.exit(3)'),
    ("", "sorted(n for n in globals() if not n.startswith('_') and n not in ('In','Out'))"),
]
