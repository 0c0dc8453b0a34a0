"""Kinds of library objects, and what their methods give back: host values, or what is still on the device."""

from __future__ import annotations

import re
from typing import Final

# Families whose objects compute where the library decides; the names only join `family_of` and `host_result`.
_OF_PACKAGE: Final[dict[str, str]] = {
    "keras": "keras", "keras_hub": "keras", "keras_cv": "keras", "fastai": "fastai", "cudf": "rapids",
    "cuml": "rapids", "cugraph": "rapids", "cuspatial": "rapids", "cupy": "rapids", "dask_cudf": "rapids",
    "sentence_transformers": "encoder", "whisper": "speech", "easyocr": "speech",
}  # fmt: skip
_TRAINER: Final = re.compile(r"^(transformers|trl|setfit|unsloth|optimum|sentence_transformers)\b.*\.\w*Trainer$")
_OTHER_TRAINER: Final = re.compile(r"\.[A-Z]\w*Trainer$")
_TF_MODEL: Final = re.compile(r"^transformers\.(TF|Flax)\w+")
_DATA_PIPELINE: Final = re.compile(
    r"^(tensorflow\.data\b|tensorflow_datasets\b|keras\..*(image|text|audio|timeseries)_dataset_from_|"
    r"keras\.utils\.\w*dataset_from_)"
)
_HOST_RESULTS: Final[dict[str, re.Pattern[str]]] = {
    "keras": re.compile(
        r"^(fit|predict|evaluate|test_on_batch|train_on_batch|get_weights|to_json|summary|save|compile|load_weights|"
        r"adapt|generate|count_params|get_config|set_weights)"
    ),
    "trainer": re.compile(r"^(?!(model|model_wrapped|compute_loss|prediction_step|training_step)$)"),
    "fastai": re.compile(r"^(fit|predict|get_preds|validate|lr_find|fine_tune|save|load|export|show|summary|recorder)"),
    "rapids": re.compile(r"^(to_pandas|to_numpy|to_arrow|tolist|to_csv|to_parquet|to_dict|get)$"),
    "encoder": re.compile(r"^(encode|predict|rank|save|evaluate|fit)"),
    "speech": re.compile(r"^(transcribe|readtext|detect_language)"),
    "pipeline": re.compile(r""),
    "data": re.compile(r""),
}

# Methods that put what they are given into their receiver.
STORING_METHODS: Final = frozenset(
    ["append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put", "push"]
)
# Methods of objects on the host that take device values and give host values: texts, logs, metrics.
REPORTING_METHODS: Final = frozenset(
    [
        "decode", "batch_decode", "convert_ids_to_tokens", "compute", "add_batch", "log", "add_scalar", "add_image",
        "add_images", "add_histogram", "write", "format", "imshow", "plot", "scatter", "bar", "hist", "set_description",
        "set_postfix", "info", "debug", "join", "startswith", *STORING_METHODS,
    ]
)  # fmt: skip
# Methods of device objects that run nothing on the device.
QUIET_METHODS: Final = frozenset(
    [
        "parameters", "named_parameters", "children", "named_children", "modules", "buffers", "state_dict", "eval",
        "train", "requires_grad_", "register_forward_hook", "register_buffer", "keys", "values", "items", "get_layer",
        "compile", "zero_grad", "save", "save_pretrained", "push_to_hub", "is_floating_point", "type", "named_modules",
    ]
)  # fmt: skip


def family_of(path: str) -> str:
    """The family of what a call of `path` makes, by its canonical path; empty for none."""
    if _TRAINER.match(path):
        return "trainer"
    if _TF_MODEL.match(path):
        return "keras"
    if _OTHER_TRAINER.search(path) and _OF_PACKAGE.get(path.partition(".")[0]) is None:
        return "trainer"
    if path == "transformers.pipeline":
        return "pipeline"
    if _DATA_PIPELINE.match(path):
        return "data"
    return _OF_PACKAGE.get(path.partition(".")[0], "")


def host_result(family: str, method: str) -> bool:
    """Calling `method` on an object of the family gives a value on the host."""
    pattern = _HOST_RESULTS.get(family)
    return pattern is not None and bool(pattern.match(method))
