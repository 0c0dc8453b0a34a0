"""What is known of libraries' calls and the GPU, by dotted import path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

# op: uses the GPU. armed: its result does when called or when one of its methods is. resident: moves things to the GPU
# and uses it. query: asks, is answered without a GPU. transform: its result runs its argument. host: its result is on
# the host.
Effect = Literal["op", "armed", "resident", "query", "transform", "host", "plain"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a call of a path does, and how sure that is."""

    effect: Effect
    confidence: float = 0.9


HOST_PACKAGES: Final = frozenset(
    {
        "numpy", "matplotlib", "pandas", "sklearn", "scipy", "seaborn", "plotly", "PIL", "cv2", "skimage", "os",
        "sys", "json", "math", "time", "random", "re", "pathlib", "collections", "itertools", "functools", "logging",
        "datetime", "IPython", "tqdm", "requests", "csv", "pickle", "string", "nltk", "spacy", "sentencepiece",
        "tokenizers", "datasets", "evaluate", "albumentations", "imageio", "wandb", "shutil", "glob", "warnings",
        "typing", "dataclasses", "copy", "gc", "subprocess",
    }
)  # fmt: skip
GPU_PACKAGES: Final = frozenset(
    {
        "cupy", "cudf", "cuml", "cugraph", "cuspatial", "cuxfilter", "dask_cudf", "dask_cuda", "pycuda", "tensorrt",
        "vllm", "rmm", "cucim",
    }
)  # fmt: skip
_CUDA_QUERIES: Final = frozenset(
    [
        "is_available", "device_count", "get_device_name", "get_device_properties", "get_device_capability",
        "current_device", "is_bf16_supported", "is_initialized", "get_arch_list", "manual_seed", "manual_seed_all",
        "set_device", "device", "amp.GradScaler", "amp.custom_fwd", "amp.custom_bwd", "get_rng_state",
        "get_rng_state_all", "set_rng_state", "set_rng_state_all", "initial_seed", "seed", "seed_all",
        "OutOfMemoryError", "mem_get_info",
    ]
)  # fmt: skip

# First match of the longest prefix wins; a path without a rule says nothing.
_RULES: Final[dict[str, Rule]] = {
    "torch.set_default_device": Rule("plain"),
    "torch.nn.DataParallel": Rule("resident"),
    "torch.nn.parallel": Rule("resident"),
    "torch.device": Rule("query"),
    "torch.backends": Rule("query"),
    "torch.backends.mps": Rule("query"),
    "torch.xpu.is_available": Rule("query"),
    "torch.accelerator": Rule("query"),
    "torch.accelerator.synchronize": Rule("op"),
    "torch.accelerator.empty_cache": Rule("op"),
    "torch.accelerator.memory_allocated": Rule("op"),
    "torch.accelerator.max_memory_allocated": Rule("op"),
    "torch.accelerator.memory_reserved": Rule("op"),
    "torch.accelerator.max_memory_reserved": Rule("op"),
    "torch.Generator": Rule("plain"),
    # Keras and TensorFlow put what they make on the GPU of their own accord.
    "tensorflow": Rule("op", 0.8),
    "tensorflow.config": Rule("query"),
    "tensorflow.test": Rule("query"),
    "tensorflow.data": Rule("host"),
    "tensorflow.io": Rule("host"),
    "tensorflow.version": Rule("query"),
    "tensorflow.random.set_seed": Rule("query"),
    "tensorflow.get_logger": Rule("query"),
    "tensorflow.distribute": Rule("query"),
    "tensorflow.distribute.MirroredStrategy": Rule("op", 0.6),
    "tensorflow.tpu": Rule("query"),
    "tensorflow.keras": Rule("plain"),
    "tensorflow.summary": Rule("host"),
    "tensorflow.train": Rule("plain"),
    "tensorflow.saved_model.load": Rule("resident", 0.8),
    "tensorflow.executing_eagerly": Rule("query"),
    "tensorflow.dtypes": Rule("host"),
    "tensorflow.compat": Rule("plain"),
    "tensorflow.function": Rule("transform"),
    "tensorflow.device": Rule("plain"),
    "tensorflow.TensorSpec": Rule("host"),
    "tensorflow_datasets": Rule("host"),
    "keras": Rule("plain"),
    "keras.layers": Rule("armed", 0.75),
    "keras.layers.Input": Rule("host"),
    "keras.Input": Rule("host"),
    "keras.datasets": Rule("host"),
    "keras.Sequential": Rule("resident", 0.75),
    "keras.models.Sequential": Rule("resident", 0.75),
    "keras.Model": Rule("resident", 0.8),
    "keras.models.Model": Rule("resident", 0.8),
    "keras.models.load_model": Rule("resident"),
    "keras.models.model_from_json": Rule("resident", 0.75),
    "keras.models.clone_model": Rule("resident", 0.75),
    "keras.saving.load_model": Rule("resident"),
    "keras.applications": Rule("resident", 0.85),
    "keras.ops": Rule("op", 0.85),
    "keras.random": Rule("op", 0.8),
    "keras_hub": Rule("resident", 0.8),
    "keras_cv": Rule("resident", 0.8),
    "tensorflow_hub.load": Rule("resident", 0.8),
    "tensorflow_hub.KerasLayer": Rule("resident", 0.8),
    # JAX arrays are born on the GPU.
    "jax": Rule("op", 0.85),
    "jax.config": Rule("query"),
    "jax.device_get": Rule("host"),
    "jax.devices": Rule("query"),
    "jax.make_mesh": Rule("query"),
    "jax.set_mesh": Rule("query"),
    "jax.ShapeDtypeStruct": Rule("host"),
    "jax.profiler": Rule("plain"),
    "jax.debug": Rule("plain"),
    "jax.print_environment_info": Rule("query"),
    "jax.typing": Rule("plain"),
    "jax.lax.Precision": Rule("plain"),
    "jax.device_count": Rule("query"),
    "jax.local_devices": Rule("query"),
    "jax.local_device_count": Rule("query"),
    "jax.default_backend": Rule("query"),
    "jax.distributed": Rule("query"),
    "jax.sharding": Rule("plain"),
    "jax.tree": Rule("transform"),
    "jax.tree_util": Rule("transform"),
    "jax.tree_map": Rule("transform"),
    "jax.jit": Rule("transform"),
    "jax.grad": Rule("transform"),
    "jax.value_and_grad": Rule("transform"),
    "jax.vmap": Rule("transform"),
    "jax.pmap": Rule("transform"),
    "jax.jacfwd": Rule("transform"),
    "jax.jacrev": Rule("transform"),
    "jax.hessian": Rule("transform"),
    "jax.checkpoint": Rule("transform"),
    "jax.remat": Rule("transform"),
    "jax.custom_vjp": Rule("transform"),
    "jax.custom_jvp": Rule("transform"),
    "jax.eval_shape": Rule("host"),
    "jax.make_jaxpr": Rule("transform"),
    "jax.nn.initializers": Rule("plain"),
    "jax.numpy.dtype": Rule("query"),
    "jax.experimental": Rule("plain"),
    "jax.experimental.pallas.pallas_call": Rule("transform"),
    "flax.nnx": Rule("plain"),
    "flax.nnx.Rngs": Rule("op", 0.85),
    "flax.nnx.jit": Rule("transform"),
    "flax.nnx.grad": Rule("transform"),
    "flax.nnx.value_and_grad": Rule("transform"),
    # Libraries that pick a GPU by themselves.
    "clip.load": Rule("resident"),
    "whisper.load_model": Rule("resident"),
    "sentence_transformers.SentenceTransformer": Rule("resident"),
    "sentence_transformers.CrossEncoder": Rule("resident"),
    "easyocr.Reader": Rule("resident"),
    "ultralytics.YOLO": Rule("armed"),
    "unsloth.FastLanguageModel": Rule("resident"),
    "accelerate.Accelerator": Rule("armed", 0.8),
    "accelerate.notebook_launcher": Rule("op"),
    "pytorch_lightning.Trainer": Rule("armed"),
    "lightning.Trainer": Rule("armed"),
    "lightning.pytorch.Trainer": Rule("armed"),
    "numba.cuda": Rule("op"),
    "numba.cuda.jit": Rule("armed"),
    "numba.cuda.is_available": Rule("query"),
    "triton": Rule("plain"),
    "triton.jit": Rule("armed"),
    "torch.autocast": Rule("plain"),
}

_HF_TRAINER: Final = re.compile(r"^(transformers|trl|sentence_transformers|setfit|unsloth|optimum)\b.*\.\w*Trainer$")
# Trainers of other packages are mostly made after that one's.
_OTHER_TRAINER: Final = re.compile(r"\.[A-Z]\w*Trainer$")
_FASTAI_LEARNER: Final = re.compile(r"^fastai\b.*\.(\w*learner|\w*Learner)$")
_TF_MODEL: Final = re.compile(r"^transformers\.(TF|Flax)\w+\.from_(pretrained|config)$")
_KERAS_ON_HOST: Final = re.compile(r"^keras(_hub|\.applications)\..*(preprocess_input|decode_\w*predictions)$")
_KERAS_OPS: Final = re.compile(r"^keras\.(metrics|losses|activations)\.[a-z]\w*$")
_TENSOR_TYPE: Final = re.compile(r"^torch\.cuda\.\w*Tensor$")

# Methods that leave the device, and attributes that are plain facts about a device object.
HOST_METHODS: Final = frozenset(
    [
        "cpu", "item", "numpy", "tolist", "size", "dim", "numel", "stride", "data_ptr", "element_size", "get_device",
        "is_contiguous", "to_pandas", "get", "to_dict", "keys", "named_modules", "to_arrow", "summary", "extra_repr",
        "count_params", "get_config", "__len__", "nelement",
    ]
)  # fmt: skip
HOST_ATTRS: Final = frozenset(
    [
        "shape", "dtype", "ndim", "name", "training", "in_features", "out_features", "num_features", "config",
        "tokenizer", "processor", "preprocess", "preprocessor", "transform", "transforms", "image_processor",
        "feature_extractor", "requires_grad", "is_cuda", "layout", "itemsize", "nbytes", "names", "columns", "index",
        "classes", "vocab", "kernel_size", "stride", "padding", "history", "epoch", "input_shape", "output_shape",
        "trainable", "text", "hyperparameters", "best_params_", "label2id", "id2label", "__class__", "__name__",
    ]
)  # fmt: skip
_HOST_ATTR: Final = re.compile(
    r"(_size|_length|_resolution|_name|_names|_dim|_id|_ids_to_tokens|_shape|_dtype|_threshold|_path|_dir|_type|_rate|"
    r"_count|_text)$|^(num|n|is|has)_"
)
# Calls on one small device value that a kernel may answer with a copy: reading it, not computing with it.
READING_METHODS: Final = frozenset(
    [
        "item", "cpu", "tolist", "numpy", "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size",
        "get_device", "is_contiguous", "is_floating_point", "keys", "__len__",
    ]
)  # fmt: skip
# These give the value again, still on the device: what is then done with it tells.
SAME_VALUE_METHODS: Final = frozenset(["detach", "clone"])
# So do these of containers and views of memory, and these attributes and functions.
PASSING_METHODS: Final = frozenset(
    [
        "items", "values", "get", "copy", "view", "squeeze", "unsqueeze", "permute", "transpose", "t", "expand",
        "unbind", "narrow", "select", "split", "chunk",
    ]
)  # fmt: skip
VIEW_ATTRS: Final = frozenset(["data", "T", "mT", "grad"])
PASSING_CALLS: Final = frozenset({"list", "tuple", "dict", "enumerate", "zip", "reversed", "iter", "next"})
READING_CALLS: Final = frozenset(
    {
        "print", "float", "int", "len", "str", "repr", "bool", "format", "round", "type", "isinstance", "display", "id",
        "hasattr", "complex",
    }
)  # fmt: skip


def rule_of(path: str) -> Rule | None:
    """What calling `path` does to the GPU, None if nothing is known of it."""
    path = canonical(path)
    package = path.partition(".")[0]
    if path.startswith("torch.cuda."):
        rest = path.removeprefix("torch.cuda.")
        return Rule("query") if rest in _CUDA_QUERIES or rest.partition(".")[0] in _CUDA_QUERIES else Rule("op", 0.9)
    if package in GPU_PACKAGES:
        return Rule("op", 0.95)
    if _HF_TRAINER.match(path) or _FASTAI_LEARNER.match(path) or _TF_MODEL.match(path):
        return Rule("resident")
    if _KERAS_ON_HOST.match(path):
        return Rule("host")
    if _KERAS_OPS.match(path):
        return Rule("op", 0.7)
    prefix = path
    while prefix:
        if prefix in _RULES:
            return _RULES[prefix]
        prefix = prefix.rpartition(".")[0]
    if package in HOST_PACKAGES:
        return Rule("host")
    return Rule("resident", 0.7) if _OTHER_TRAINER.search(path) else None


def canonical(path: str) -> str:
    """One path for the names that a thing goes by, such as `tensorflow.keras.layers` for `keras.layers`."""
    for prefix in ("tensorflow.keras", "tensorflow.python.keras", "tf_keras"):
        if path == prefix or path.startswith(f"{prefix}."):
            return "keras" + path[len(prefix) :]
    return path


def is_there(path: str) -> bool | None:
    """The answer to "is there such a device?", where GPUs are those of CUDA; None if `path` asks something else."""
    owner, _, last = path.rpartition(".")
    if last not in ("is_available", "is_built", "is_bf16_supported", "has_mps", "has_cuda"):
        return None
    return not (last == "has_mps" or owner.rpartition(".")[2] in ("mps", "xpu", "hpu", "npu", "tpu"))


def is_device_tensor_type(path: str) -> bool:
    """`torch.cuda.FloatTensor` and its like."""
    return bool(_TENSOR_TYPE.match(path))


def is_host_attr(attr: str) -> bool:
    """The attribute of a device object is a plain fact about it."""
    return attr in HOST_ATTRS or bool(_HOST_ATTR.search(attr))


def is_device_word(name: str) -> bool:
    """An identifier that people give to devices."""
    lowered = name.lower()
    return "dev" in lowered or "gpu" in lowered or "cuda" in lowered


def is_hf_trainer(path: str) -> bool:
    """A trainer that moves the model it is given to its device when it is made."""
    return bool(_HF_TRAINER.match(path) or _OTHER_TRAINER.search(path))
