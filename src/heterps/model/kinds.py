"""The kinds of work of a traced model's nodes: a fixed set of words that profiles, tables and schedulers share.

compute node   starts a layer                            Linear, cat, relu, sum, matmul ...
shape node     joins the layer that makes its input      getitem, reshape, size, unsqueeze ...
"""

from __future__ import annotations

from typing import TypeVar

from torch import fx, nn

from heterps.nn import SparseEmbedding

KINDS = (
    "embedding", "linear", "interaction", "activation", "norm", "dropout", "concat", "elementwise", "reduction",
    "convolution", "recurrent", "attention", "other",
)  # fmt: skip


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODULE_KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "embedding": (SparseEmbedding, nn.Embedding, nn.EmbeddingBag),
    "linear": (nn.Linear, nn.LazyLinear),
    "interaction": (nn.Bilinear, nn.CosineSimilarity, nn.PairwiseDistance),
    "norm": (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm),
    "dropout": (nn.modules.dropout._DropoutNd,),
    "convolution": (nn.modules.conv._ConvNd,),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "attention": (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    "reduction": (
        nn.modules.pooling._MaxPoolNd,
        nn.modules.pooling._AvgPoolNd,
        nn.modules.pooling._AdaptiveAvgPoolNd,
        nn.modules.pooling._AdaptiveMaxPoolNd,
    ),
}

SHAPE_MODULES = (nn.Identity, nn.Flatten, nn.Unflatten)

# Names of functions and methods; an operator (a + b) and a method (a.add_(b)) share theirs: see `function_name`.
FUNCTION_KINDS: dict[str, frozenset[str]] = {
    "embedding": frozenset({"embedding", "embedding_bag", "index_select", "gather"}),
    "linear": frozenset({"linear"}),
    "interaction": _words(
        "matmul mm bmm baddbmm addmm einsum dot inner outer tensordot bilinear cosine_similarity cdist"
    ),
    "activation": _words(
        "relu relu6 leaky_relu prelu elu selu gelu silu mish softplus softmax log_softmax softmin sigmoid "
        "logsigmoid tanh hardtanh hardswish hardsigmoid glu celu"
    ),
    "norm": _words("batch_norm layer_norm group_norm instance_norm rms_norm normalize"),
    "dropout": _words("dropout alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d"),
    "concat": _words("cat concat concatenate stack hstack vstack dstack pad"),
    "elementwise": _words(
        "add sub rsub mul div truediv floordiv mod pow square sqrt rsqrt exp expm1 log log1p log2 abs neg sign "
        "reciprocal clamp clip where maximum minimum lerp addcmul addcdiv sin cos floor ceil round "
        "eq ne lt le gt ge logical_and logical_or logical_not masked_fill"
    ),
    "reduction": _words("sum mean prod max min amax amin std var norm logsumexp argmax argmin cumsum any all median"),
    "convolution": _words("conv1d conv2d conv3d"),
    "attention": frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"}),
}
KIND_OF_FUNCTION = {name: kind for kind, names in FUNCTION_KINDS.items() for name in names}

SHAPE_FUNCTIONS = _words(
    "getitem getattr reshape view view_as reshape_as size dim numel shape unsqueeze squeeze flatten unflatten "
    "ravel expand expand_as permute transpose t mT swapaxes movedim moveaxis select narrow chunk split unbind "
    "tensor_split detach contiguous to type float type_as len"
)

M = TypeVar("M", bound=nn.Module | type[nn.Module])


def whole(module: M, *, kind: str = "other") -> M:
    """Mark a module, or every module of a class, as indivisible: tracing makes it a single layer of the given kind.

    Use it for modules that torch.fx cannot trace, and for those whose parts are too small to place one by one:

        model.block = heterps.model.whole(Block())            # this one
        Gate = heterps.model.whole(Gate, kind="interaction")  # all of this class
    """
    if kind not in KINDS:
        raise ValueError(f"a layer has no kind {kind!r}; there are: {', '.join(KINDS)}")
    module.layer_kind = kind  # type: ignore[union-attr]
    return module


def is_whole(module: nn.Module) -> bool:
    return isinstance(getattr(module, "layer_kind", None), str)


def kind_of(node: fx.Node, module: nn.Module | None) -> str | None:
    """Return the kind of layer that `node` starts; None for a shape node. `module` is the target of a call_module."""
    if module is not None:
        return _module_kind(module)
    if node.op in ("placeholder", "get_attr", "output"):
        return None
    name = function_name(node)
    return None if name in SHAPE_FUNCTIONS else KIND_OF_FUNCTION.get(name, "other")


def writes_in_place(node: fx.Node, module: nn.Module | None) -> bool:
    """Tell whether the node overwrites its input: relu_(x), x.add_(1), nn.ReLU(inplace=True)."""
    if module is not None:
        return getattr(module, "inplace", False) is True
    if node.kwargs.get("inplace") is True:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    dunder = name.startswith("__")
    return node.op in ("call_method", "call_function") and not dunder and (name.endswith("_") or name in IN_PLACE)


IN_PLACE = _words("iadd isub imul itruediv ipow setitem")


def _module_kind(module: nn.Module) -> str | None:
    if is_whole(module):
        return str(module.layer_kind)
    if isinstance(module, SHAPE_MODULES):
        return None
    for kind, types in MODULE_KINDS.items():
        if isinstance(module, types):
            return kind
    return "activation" if type(module).__module__ == "torch.nn.modules.activation" else "other"


def function_name(node: fx.Node) -> str:
    """Return the common name of a function: "add" for `torch.add`, `operator.iadd`, `x.add_` and `x.__add__`."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name in IN_PLACE:
        return name[1:]
    return name.strip("_")
