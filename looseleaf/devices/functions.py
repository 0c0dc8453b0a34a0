"""Which torch functions the virtual device treats apart, as they reach `__torch_function__`.

Imported only after torch.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterable
from typing import Any

torch: Any = importlib.import_module("torch")
_device_context: Any = importlib.import_module("torch.utils._device")
_F = torch.nn.functional
_VF = torch._VF
_INIT = torch.nn.init

# Answers about a tensor that are the same on every device and read no element.
_METADATA = """
size stride dim ndimension numel nelement element_size is_contiguous is_floating_point is_complex is_signed
is_inference is_conj is_neg storage_offset data_ptr untyped_storage _typed_storage storage has_names
requires_grad_ retain_grad register_post_accumulate_grad_hook is_same_size is_set_to is_coalesced is_distributed
__len__ __hash__ __dir__ __setstate__ __reduce_ex__ dense_dim sparse_dim names
"""
# Results share the argument's storage, always; nothing runs on a device.
_VIEWS = """
detach view view_as expand expand_as permute transpose t squeeze unsqueeze narrow select unbind split
split_with_sizes chunk as_strided unfold swapaxes swapdims movedim moveaxis diagonal alias unsafe_chunk unsafe_split
hsplit vsplit dsplit
"""
# CUDA takes host tensors beside device tensors here, or these calls have checks of their own elsewhere.
_MIXED_ALLOWED = """
copy_ _foreach_copy_ type_as tensor_split new_tensor new ctc_loss
broadcast_tensors expand_as view_as reshape_as resize_as_ result_type _pad_packed_sequence
lstm gru rnn_tanh rnn_relu swap_tensors register_hook __deepcopy__ _has_compatible_shallow_copy_type
"""
# Element by element: one host tensor without dimensions counts as a number here, and needs no closer look.
_NUMBERS_ALLOWED = """
add add_ sub sub_ subtract subtract_ mul mul_ multiply multiply_ div div_ divide divide_ true_divide true_divide_
floor_divide floor_divide_ remainder remainder_ fmod fmod_ pow pow_ float_power float_power_ eq eq_ ne ne_ lt lt_ le le_
gt gt_ ge ge_ maximum minimum fmax fmin atan2 atan2_ where lerp lerp_ addcmul addcmul_ addcdiv addcdiv_
masked_fill masked_fill_ index_fill index_fill_ fill_
logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor rsub copysign hypot
__add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__
__div__ __rdiv__ __idiv__ __floordiv__ __rfloordiv__ __ifloordiv__ __mod__ __rmod__ __imod__ __pow__ __rpow__ __ipow__
__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __rand__ __iand__ __or__ __ror__ __ior__ __xor__ __rxor__ __ixor__
"""
# Draws from the device's generator.
_RANDOM = """
rand randn randint randperm normal bernoulli multinomial poisson binomial rand_like randn_like randint_like
uniform_ normal_ random_ bernoulli_ exponential_ geometric_ log_normal_ cauchy_ dropout dropout_ alpha_dropout
alpha_dropout_ feature_dropout feature_dropout_ feature_alpha_dropout feature_alpha_dropout_ native_dropout dropout1d
dropout2d dropout3d gumbel_softmax rrelu rrelu_ fractional_max_pool2d fractional_max_pool3d
fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices scaled_dot_product_attention
multi_head_attention_forward lstm gru rnn_tanh rnn_relu trunc_normal_ xavier_uniform_ xavier_normal_
kaiming_uniform_ kaiming_normal_ orthogonal_ sparse_ svd_lowrank pca_lowrank _standard_gamma _sample_dirichlet
"""
_CONVOLUTIONS = """
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
"""
_RECURRENT = """
lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
"""
# The lists of CUDA's autocast (torch's documentation of autocast and `ATen/autocast_mode.h`), by their Python names.
_AUTOCAST_FLOAT32 = """
__pow__ __rpow__ __rtruediv__ acos asin cosh cosine_embedding_loss cdist cosine_similarity cross_entropy cumprod cumsum
dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss layer_norm log log10 log_softmax log1p log2
margin_ranking_loss mse_loss multilabel_margin_loss multi_margin_loss nll_loss norm normalize pdist poisson_nll_loss
pow prod reciprocal rsqrt sinh smooth_l1_loss huber_loss soft_margin_loss softmax softmin softplus sum tan
triplet_margin_loss binary_cross_entropy_with_logits gaussian_nll_loss multilabel_soft_margin_loss renorm
rms_norm native_layer_norm logsumexp frobenius_norm nuclear_norm vector_norm matrix_norm interpolate upsample
upsample_nearest upsample_bilinear pairwise_distance gumbel_softmax local_response_norm
"""
_AUTOCAST_LOW = """
conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu addmm addmv addr
matmul __matmul__ __rmatmul__ einsum mm mv vecdot linear addbmm baddbmm bmm chain_matmul multi_dot
scaled_dot_product_attention
"""
_AUTOCAST_WIDEST = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sample grid_sampler index_put tensordot scatter_add
"""
# Made of several operators of those lists.
_AUTOCAST_WITHIN = """
multi_head_attention_forward matrix_power cov corrcoef
"""
_AUTOCAST_UNSAFE = """
binary_cross_entropy
"""


def _resolve(names: str, owners: Iterable[Any]) -> frozenset[Any]:
    found = set()
    for name in names.split():
        for owner in owners:
            function = getattr(owner, name, None)
            if function is not None:
                found.add(function)
    return frozenset(found)


def draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of a function of RANDOM draws; one that is told to rest, as in evaluation, does not."""
    place = _TRAINING_AT.get(func)
    if place is not None:
        return bool(kwargs.get("training", args[place] if len(args) > place else True))
    if func in _DROPOUT_AT:
        place = _DROPOUT_AT[func]
        return bool(kwargs.get("dropout_p", args[place] if len(args) > place else 0.0))
    if func in RECURRENT and len(args) > 6:
        # Packed input has its batch sizes before the states, and so all else one further.
        dropout, training = args[5:7] if isinstance(args[2], list) else args[6:8]
        return bool(dropout and training)
    return True


def _property_getters() -> list[Any]:
    """The `__get__` of each property that C++ gives Tensor, as modes receive it."""
    base = torch._C.TensorBase
    getters = []
    for name in dir(base):
        attribute: Any = getattr(base, name, None)
        if isinstance(attribute, (types.GetSetDescriptorType, property)):
            getters.append(attribute.__get__)
    for name in ("H", "T", "mH", "mT", "grad", "__cuda_array_interface__"):
        attribute = torch.Tensor.__dict__.get(name)
        if attribute is not None:
            getters.append(attribute.__get__)
    return getters


# Looked for once, by a zygote for all its workers: it touches each of torch's functions.
PROPERTY_GETTERS = tuple(_property_getters())

_TENSOR_AND_TORCH = (torch.Tensor, torch)
_ALL = (torch.Tensor, torch, _F, _VF, torch._C._nn, torch.special, torch.linalg)

METADATA: frozenset[Any] = _resolve(_METADATA, _TENSOR_AND_TORCH)
VIEWS: frozenset[Any] = _resolve(_VIEWS, _TENSOR_AND_TORCH)
MIXED_ALLOWED: frozenset[Any] = _resolve(_MIXED_ALLOWED, _ALL)
NUMBERS_ALLOWED: frozenset[Any] = _resolve(_NUMBERS_ALLOWED, _TENSOR_AND_TORCH)
RANDOM: frozenset[Any] = _resolve(_RANDOM, (*_ALL, _INIT))
CONVOLUTIONS: frozenset[Any] = _resolve(_CONVOLUTIONS, (torch, _F))
RECURRENT: frozenset[Any] = _resolve(_RECURRENT, (_VF,))
AUTOCAST_FLOAT32: frozenset[Any] = _resolve(_AUTOCAST_FLOAT32, _ALL)
AUTOCAST_LOW: frozenset[Any] = _resolve(_AUTOCAST_LOW, _ALL)
AUTOCAST_WIDEST: frozenset[Any] = _resolve(_AUTOCAST_WIDEST, _ALL)
AUTOCAST_WITHIN: frozenset[Any] = _resolve(_AUTOCAST_WITHIN, _ALL)
AUTOCAST_UNSAFE: frozenset[Any] = _resolve(_AUTOCAST_UNSAFE, (_F, torch._C._nn))
_TRAINING_AT: dict[Any, int] = {
    **dict.fromkeys((_F.dropout, _F.alpha_dropout, _F.dropout1d, _F.dropout2d, _F.dropout3d), 2),
    **dict.fromkeys((_F.feature_alpha_dropout, torch.dropout, torch.alpha_dropout, torch.feature_dropout), 2),
    _F.rrelu: 3,
}
_DROPOUT_AT: dict[Any, int] = {_F.scaled_dot_product_attention: 4}
# Of those, the ones that write into their first argument: it must be on the device, whatever its dimensions.
NUMBERS_WRITTEN: frozenset[Any] = _resolve(
    " ".join(
        name for name in _NUMBERS_ALLOWED.split()
        if name.startswith("__i") or (name.endswith("_") and not name.startswith("__"))
    ),
    _TENSOR_AND_TORCH,
)
# A default device set with torch.set_default_device or `with torch.device(...)` applies to these alone.
CONSTRUCTORS: frozenset[Any] = frozenset(_device_context._device_constructors())
