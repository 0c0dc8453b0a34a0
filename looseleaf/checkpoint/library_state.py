"""Random generators and flags of libraries: a section each, of plain values, so that reading one imports nothing."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from looseleaf import devices
from looseleaf.checkpoint import interpreter_state, shell_state, torch_flags
from looseleaf.checkpoint.by_name import TABLE_MODULES
from looseleaf.devices.backend import DeviceState

_Values = dict[str, Any]


class Section(NamedTuple):
    """`read(last)` gives plain values, `apply(values)` sets them; both only while `is_visible()`.

    `library`: what has to be imported for that; None: it depends on something else.
    """

    library: str | None
    is_visible: Callable[[], bool]
    read: Callable[[Mapping[str, Any]], _Values]
    apply: Callable[[Mapping[str, Any]], None]


def _imported(name: str, attribute: str) -> bool:
    # The attribute is there only once the import has run to its end.
    return hasattr(sys.modules.get(name), attribute)


def _read_numpy(_: Mapping[str, Any]) -> _Values:
    import numpy as np

    state: Any = np.random.get_state()
    kind, keys, position, has_gauss, gauss = state
    return {
        "random": (kind, keys.tobytes(), int(position), int(has_gauss), float(gauss)),
        "print": {key: value for key, value in np.get_printoptions().items() if key != "override_repr"},
        "errors": dict(np.geterr()),
        "error_call": np.geterrcall(),
        "buffer_size": np.getbufsize(),
    }


def _apply_numpy(values: Mapping[str, Any]) -> None:
    import numpy as np

    kind, keys, *rest = values["random"]
    np.set_printoptions(**values["print"])
    np.seterr(**values["errors"])
    np.seterrcall(values.get("error_call"))
    if (size := values.get("buffer_size", np.getbufsize())) != np.getbufsize():
        np.setbufsize(size)
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))


def _read_torch(_: Mapping[str, Any]) -> _Values:
    import torch

    return {
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "default_device": str(torch.get_default_device()),
        "grad": torch.is_grad_enabled(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        ),
        "flags": torch_flags.read(),
        "anomaly": torch.is_anomaly_enabled(),
        "random": bytes(torch.default_generator.get_state().numpy()),
        "next_hook_id": torch.utils.hooks.RemovableHandle.next_id,
        "print": {name: getattr(torch._tensor_str.PRINT_OPTS, name) for name in _TORCH_PRINTING},
    }  # fmt: skip


_TORCH_PRINTING: Final = ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")


def _apply_torch(values: Mapping[str, Any]) -> None:
    import torch

    torch.set_default_dtype(getattr(torch, values["default_dtype"]))
    if str(torch.get_default_device()) != values["default_device"]:
        torch.set_default_device(None if values["default_device"] == "cpu" else values["default_device"])
    torch.set_grad_enabled(values["grad"])
    deterministic, warn_only = values["deterministic"]
    now = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    if (deterministic, warn_only) != now:
        # Only for a change: the call imports torch's compiler, 800 modules in seconds.
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch_flags.apply(values.get("flags", {}))
    torch.autograd.set_detect_anomaly(values["anomaly"])
    for name, value in values["print"].items():
        setattr(torch._tensor_str.PRINT_OPTS, name, value)
    torch.default_generator.set_state(torch.frombuffer(bytearray(values["random"]), dtype=torch.uint8))
    # A new hook must not get the number, and so the place, of one that came with a module or tensor.
    handle = torch.utils.hooks.RemovableHandle
    handle.next_id = max(handle.next_id, values["next_hook_id"])


def _hook_tables() -> dict[tuple[str, str], Any]:
    """(module, attribute) of what torch calls for every module or optimizer; one of them is a flag, not a table."""
    found = {}
    for name in TABLE_MODULES:
        for attribute, value in vars(sys.modules[name]).items():
            if attribute.startswith("_global_"):
                found[name, attribute] = value
    return found


def _read_hooks(_: Mapping[Any, Any]) -> dict[Any, Any]:
    used = {place: table for place, table in _hook_tables().items() if table or table is False}
    return {place: dict(table) if isinstance(table, dict) else table for place, table in used.items()}


def _apply_hooks(values: Mapping[Any, Any]) -> None:
    for (name, attribute), table in _hook_tables().items():
        wanted = values.get((name, attribute))
        if isinstance(table, dict):
            table.clear()
            table.update(wanted or {})
        else:
            setattr(sys.modules[name], attribute, wanted)


def _read_devices(last: Mapping[str, Any]) -> _Values:
    state = devices.device_state()
    if not state.generators:
        return dict(last)
    return {"current": state.current_device, "generators": list(state.generators)}


def _apply_devices(values: Mapping[str, Any]) -> None:
    if values:
        devices.apply_device_state(DeviceState(values["current"], tuple(values["generators"])))


def _raw(parameters: Any) -> _Values:
    # The plain dict methods: asking for the backend by the mapping's own would choose one.
    return dict(dict.items(parameters))


def _read_matplotlib(_: Mapping[str, Any]) -> _Values:
    import matplotlib as mpl

    default, now = _raw(mpl.rcParamsDefault), _raw(mpl.rcParams)
    changed = {key: value for key, value in now.items() if not key.startswith("backend") and value != default.get(key)}
    # The inline backend has two names, and a person may ask for the one in use.
    return {**changed, "backend": now["backend"]} if now["backend"] in _INLINE_BACKENDS else changed


_INLINE_BACKENDS: Final = ("inline", "module://matplotlib_inline.backend_inline")


def _apply_matplotlib(values: Mapping[str, Any]) -> None:
    import matplotlib as mpl

    parameters: Any = mpl.rcParams
    default = {key: value for key, value in _raw(mpl.rcParamsDefault).items() if not key.startswith("backend")}
    changed = dict(values)
    backend = changed.pop("backend", None)
    if backend is not None and _raw(parameters)["backend"] in _INLINE_BACKENDS:
        changed["backend"] = backend
    dict.update(parameters, {**default, **changed})


def _read_pandas(_: Mapping[str, Any]) -> _Values:
    from pandas._config import config

    # All of them: some defaults depend on the process that asks.
    roots = {key: config._get_root(key) for key in config._registered_options if key not in config._deprecated_options}
    return {key: parent[name] for key, (parent, name) in roots.items()}


def _apply_pandas(values: Mapping[str, Any]) -> None:
    from pandas._config import config

    now = _read_pandas({})
    for key, value in values.items():
        # By pandas itself, which tells whom it concerns, but only if it is another one.
        if key in now and now[key] is not value and now[key] != value:
            config.set_option(key, value)


_DECIMAL: Final = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _read_decimal(_: Mapping[str, Any]) -> _Values:
    import decimal

    context = decimal.getcontext()
    traps = sorted(signal.__name__ for signal, trapped in context.traps.items() if trapped)
    return {**{name: getattr(context, name) for name in _DECIMAL}, "traps": traps}


def _apply_decimal(values: Mapping[str, Any]) -> None:
    import decimal

    context = decimal.getcontext()
    for name in _DECIMAL:
        setattr(context, name, values[name])
    for signal in list(context.traps):
        context.traps[signal] = signal.__name__ in values["traps"]


def _read_sklearn(_: Mapping[str, Any]) -> _Values:
    import sklearn

    return dict(sklearn.get_config())


def _apply_sklearn(values: Mapping[str, Any]) -> None:
    import sklearn

    sklearn.set_config(**{name: value for name, value in values.items() if name in sklearn.get_config()})


def _read_mpmath(_: Mapping[str, Any]) -> _Values:
    mpmath: Any = sys.modules["mpmath"]
    return {"prec": mpmath.mp.prec, "pretty": mpmath.mp.pretty}


def _apply_mpmath(values: Mapping[str, Any]) -> None:
    mpmath: Any = sys.modules["mpmath"]
    for name, value in values.items():
        setattr(mpmath.mp, name, value)


def _is_plain_handler(handler: Any) -> bool:
    # Others hold files and connections, and stay where they were made.
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return type(handler) is logging.StreamHandler and any(handler.stream is stream for stream in streams)


def _read_logging(_: Mapping[str, Any]) -> _Values:
    root = logging.root
    loggers = list(root.manager.loggerDict.items())
    levels = {name: one.level for name, one in loggers if isinstance(one, logging.Logger) and one.level}
    return {
        "level": root.level, "disabled": root.manager.disable,
        "handlers": [handler for handler in root.handlers if _is_plain_handler(handler)],
        "levels": {name: level for name, level in sorted(levels.items()) if name.partition(".")[0] != "looseleaf"},
        "level_names": {
            level: logging.getLevelName(level) for level in sorted({*logging.getLevelNamesMapping().values()})
        },
    }  # fmt: skip


def _apply_logging(values: Mapping[str, Any]) -> None:
    root = logging.root
    others = [handler for handler in root.handlers if not _is_plain_handler(handler)]
    root.handlers[:] = [*values["handlers"], *others]
    # Setting a level makes every logger forget what it found out, some hundred of them.
    if root.level != values["level"]:
        root.setLevel(values["level"])
    if root.manager.disable != values["disabled"]:
        logging.disable(values["disabled"])
    for name, level in values["levels"].items():
        logger = logging.getLogger(name)
        if logger.level != level:
            logger.setLevel(level)
    for level, name in values.get("level_names", {}).items():
        if logging.getLevelName(level) != name:
            logging.addLevelName(level, name)


SECTIONS: Final[dict[str, Section]] = {
    "devices": Section(None, devices.active, _read_devices, _apply_devices),
    "numpy": Section("numpy", lambda: _imported("numpy", "random"), _read_numpy, _apply_numpy),
    "torch": Section("torch", lambda: _imported("torch", "default_generator"), _read_torch, _apply_torch),
    "torch_hooks": Section(
        "torch", lambda: all(name in sys.modules for name in TABLE_MODULES), _read_hooks, _apply_hooks
    ),
    "matplotlib": Section(
        "matplotlib", lambda: _imported("matplotlib", "rcParamsDefault"), _read_matplotlib, _apply_matplotlib
    ),
    "inline": Section(
        "matplotlib_inline.config", shell_state.inline_is_used, shell_state.read_inline, shell_state.apply_inline
    ),
    "pandas": Section("pandas", lambda: _imported("pandas", "options"), _read_pandas, _apply_pandas),
    "decimal": Section("decimal", lambda: _imported("decimal", "getcontext"), _read_decimal, _apply_decimal),
    "sklearn": Section("sklearn", lambda: _imported("sklearn", "set_config"), _read_sklearn, _apply_sklearn),
    "mpmath": Section("mpmath", lambda: _imported("mpmath", "mp"), _read_mpmath, _apply_mpmath),
    "interpreter": Section(None, lambda: True, interpreter_state.read, interpreter_state.apply),
    "logging": Section(None, lambda: True, _read_logging, _apply_logging),
    "ipython": Section(
        None, lambda: shell_state.shell_here() is not None, shell_state.read_shell, shell_state.apply_shell
    ),
}
