# Tables around the GPU: frames go in, frames come out; options, categories and dates keep their meaning everywhere.
# gpu-cells: 27
# %% setup
import numpy as np
import pandas as pd
import torch
from IPython.display import display
pd.set_option("display.max_rows", 8)
rng = np.random.default_rng(7)
torch.manual_seed(7)
# %% sales
n = 240
sales = pd.DataFrame({
    "date": pd.date_range("2024-01-01", periods=n, freq="D"),
    "shop": pd.Categorical(rng.choice(["north", "south", "west"], n), categories=["west", "south", "north"], ordered=True),
    "units": rng.integers(1, 50, n),
    "price": rng.normal(10, 2, n).round(2),
})
sales["revenue"] = sales.units * sales.price
sales.head()
# %% dtypes gpu
sales.info(memory_usage=False)
sales.dtypes
# %% to-tensor
X = torch.tensor(sales[["units", "price"]].to_numpy(dtype="float32"), device="cuda")
t = torch.tensor(sales.revenue.to_numpy(dtype="float32"), device="cuda")
ones = torch.ones(len(X), 1, device="cuda")
coef = torch.linalg.lstsq(torch.hstack([X, ones]), t[:, None]).solution.squeeze().round(decimals=2)
pd.Series(coef.cpu(), index=["units", "price", "const"]).round(2)
# %% predict
sales["predicted"] = (torch.hstack([X, ones]) @ coef).cpu().numpy()
sales["error"] = sales.predicted - sales.revenue
sales.describe().round(1)
# %% group-gpu gpu
by_shop = sales.groupby("shop", observed=True).agg(units=("units", "sum"), error=("error", lambda e: (e**2).mean()))
by_shop
# %% group-here
by_shop.sort_index(ascending=False).round(2)
# %% pivot gpu
sales["month"] = sales.date.dt.to_period("M")
pivot = sales.pivot_table(index="month", columns="shop", values="revenue", aggfunc="sum", observed=True)
pivot.round(0)
# %% pivot-here
pivot.index.dtype, pivot.columns.categories.tolist(), pivot.loc["2024-03", "north"].round(2)
# %% options-in-gpu gpu
pd.set_option("display.precision", 3)
pd.options.display.max_columns = 4
pd.set_option("display.float_format", "{:,.1f}".format)
# %% options-seen
sales.head(3)
# %% options-seen-gpu gpu
print(pd.get_option("display.precision"), pd.get_option("display.max_columns"))
sales.tail(2)
# %% options-context gpu
with pd.option_context("display.max_rows", 3, "display.float_format", None):
    display(sales[["date", "units", "price"]])
pd.get_option("display.max_rows")
# %% options-reset
pd.reset_option("display.float_format")
pd.reset_option("display.max_columns")
pd.get_option("display.precision"), pd.get_option("display.float_format")
# %% options-reset-gpu gpu
print(pd.get_option("display.float_format"), pd.get_option("display.max_columns"))
sales[["units", "price"]].mean()
# %% alias
values = np.arange(6.0).reshape(3, 2)
frame = pd.DataFrame(values, columns=["a", "b"], copy=False)
tensor = torch.from_numpy(values)
np.shares_memory(frame.to_numpy(), values)
# %% alias-gpu gpu
tensor[0, 0] = 100
values[1, 1] = -5
print(np.shares_memory(frame.to_numpy(), values), np.shares_memory(tensor.numpy(), values))
frame
# %% alias-here
values[2, 0] = 7
frame, tensor
# %% copies gpu
part = sales[sales.units > 45]
part = part.assign(double=part.units * 2)
sub = sales.loc[:3, "units"]
sub.iloc[0] = -1
sales.units.iloc[0] != -1, len(part)
# %% merge gpu
targets = pd.DataFrame({"shop": ["north", "south"], "target": [1000.0, np.nan]})
merged = by_shop.reset_index().merge(targets, on="shop", how="left")
merged
# %% merge-here
merged.isna().sum(), merged.dtypes["shop"]
# %% time-series gpu
daily = sales.set_index("date").revenue
weekly = daily.resample("W").sum()
smooth = torch.nn.functional.avg_pool1d(torch.tensor(weekly.to_numpy(), device="cuda")[None, None], 3, 1).squeeze()
weekly = weekly.to_frame("sum")
weekly["smooth"] = np.r_[np.nan, smooth.cpu(), np.nan]
weekly.head(4)
# %% time-here
weekly.index.freq, weekly.index.inferred_type, weekly.smooth.isna().sum(), weekly.index[0]
# %% zones gpu
stamps = pd.date_range("2024-03-30", periods=3, freq="12h", tz="Europe/Berlin")
deltas = stamps.to_series().diff().dropna()
stamps, deltas.iloc[0]
# %% zones-here
stamps.tz_convert("UTC"), pd.Timestamp("2024-05-01", tz="UTC") > stamps[0]
# %% multiindex gpu
cube = sales.groupby(["month", "shop"], observed=True).units.sum().unstack(fill_value=0)
stacked = cube.stack()
stacked.head(4)
# %% multiindex-here
stacked.loc[("2024-02", "south")], stacked.index.names, cube.shape
# %% nullable gpu
nullable = pd.DataFrame({"i": pd.array([1, None, 3], dtype="Int64"), "s": pd.array(["a", None, "c"], dtype="string"), "b": pd.array([True, None, False], dtype="boolean")})
nullable.convert_dtypes().dtypes, nullable
# %% nullable-here
nullable.i.sum(), nullable.s.str.upper().tolist(), nullable.b.any()
# %% style gpu
merged.style.format(precision=1, na_rep="-").set_caption("targets").set_uuid("fixed").hide(axis="index")
# %% object-column
bag = pd.DataFrame({"name": ["a", "b"], "tensor": [torch.ones(2, device="cuda"), torch.zeros(1, device="cuda")]})
bag
# %% object-column-gpu
bag["total"] = bag.tensor.map(lambda v: v.sum().item())
bag.tensor.iloc[0].mul_(5)
bag[["name", "total"]]
# %% object-column-later
[v.tolist() for v in bag.tensor]
# %% attrs gpu
sales.attrs["source"] = "made up"
sales.index.name = "row"
sales.flags.allows_duplicate_labels
# %% attrs-here
sales.attrs, sales.index.name, sales.columns[:3].tolist()
# %% cell-by-cell gpu
for shop, group in sales.groupby("shop", observed=True):
    print(f"{shop:>6}: {torch.tensor(group.revenue.to_numpy(), device='cuda').median().item():9.2f}")
# %% eval-query gpu
limit = 400
sales.query("revenue > @limit and shop == 'west'").eval("half = revenue / 2").half.head(3)
# %% csv gpu
import io
buffer = io.StringIO()
sales.head(3).to_csv(buffer, index=False)
print(buffer.getvalue())
# %% csv-here
buffer.seek(0)
again = pd.read_csv(buffer, parse_dates=["date"], dtype={"shop": "category"})
again.dtypes["date"], again.shop.tolist()
# %% markdown-and-text gpu
print(by_shop.to_string())
print(by_shop.to_latex(index=False).splitlines()[0])
# %% error gpu raises
sales["nonexistent"]
# %% sparse-interval gpu
bins = pd.cut(sales.price, [0, 8, 10, 20])
counts = bins.value_counts().sort_index()
counts
# %% sparse-interval-here
counts.index[0].left, bins.cat.ordered, counts.index.dtype
