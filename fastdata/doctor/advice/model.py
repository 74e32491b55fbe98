"""How a model computes: precision, order of memory, kernels, layers that do needless work."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from fastdata.doctor.contract import Finding, Numerics, Undo, advice, at, replaced, switched
from fastdata.doctor.seen import ModuleUse, Seen
from fastdata.doctor.sources import assigns, mentions

CONVOLVES = nn.Conv1d, nn.Conv2d, nn.Conv3d
LINEAR = (*CONVOLVES, nn.Linear)
MULTIPLIES = (*LINEAR, nn.MultiheadAttention)
CONVOLUTIONS = nn.Conv2d, nn.ConvTranspose2d
LEAST_BLOCKS = 4
ACTIVATIONS = nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.ELU


@advice("D01", "autocast, bfloat16", numerics=Numerics.PRECISION)
def mixed_precision(seen: Seen) -> Iterator[Finding]:
    """Look for models that multiply in float32."""
    forwards = list(seen.of_kind("forward"))
    for model in seen.trained() if not any(event.autocast for event in forwards) else ():
        if _multiplies(seen.uses[module] for module in model.modules() if module in seen.uses):
            passes = [event.line for event in forwards if event.of is model]
            trains = [event.line for event in seen.training_passes if event.of is model]
            change = functools.partial(_cast, model, "cuda" if seen.on_gpu else "cpu")
            yield Finding((trains or passes)[-1], "torch.autocast(dtype=torch.bfloat16)", change)


def _multiplies(uses: Iterable[ModuleUse]) -> bool:
    """Return whether a module multiplies float32 matrices."""
    return any(isinstance(u.module, MULTIPLIES) and u.dtype == torch.float32 for u in uses)


def _cast(model: nn.Module, device: str) -> Undo:
    forward = model.forward

    @functools.wraps(forward)
    def cast(*arguments: Any, **options: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            output = forward(*arguments, **options)
        return tree_map(_in_float32, output)

    return replaced(model, "forward", cast)


def _in_float32(leaf: Any) -> Any:
    is_half = torch.is_tensor(leaf) and leaf.dtype == torch.bfloat16
    return leaf.float() if is_half else leaf


_HIGH = 'torch.set_float32_matmul_precision("high")'


@advice("D02", _HIGH, numerics=Numerics.PRECISION, gpu_only=True)
def matmul_precision(seen: Seen) -> Iterator[Finding]:
    """Look for float32 products without it."""
    names = "fp32_precision", "set_float32_matmul_precision"
    is_set = torch.get_float32_matmul_precision() != "highest" or (
        not seen.on_gpu and (mentions(*names) or assigns("matmul.allow_tf32"))
    )
    if _multiplies(seen.uses.values()) and not is_set:
        setter = torch.set_float32_matmul_precision
        yield Finding(_model_line(seen), "", functools.partial(switched, setter, "high", "highest"))


def _model_line(seen: Seen) -> str:
    """Return the line that makes the first trained model; "" if it is not known."""
    return next(map(seen.line_of, seen.trained()), "")


@advice("D04", "torch.backends.cudnn.benchmark = True", numerics=Numerics.ROUNDING, gpu_only=True)
def autotuner(seen: Seen) -> Iterator[Finding]:
    """Look for convolutions without it."""
    has = any(isinstance(module, CONVOLUTIONS) for module in seen.uses)
    is_on = torch.backends.cudnn.benchmark or (not seen.on_gpu and assigns("cudnn.benchmark"))
    if has and not is_on:
        setter = functools.partial(setattr, torch.backends.cudnn, "benchmark")
        yield Finding(_model_line(seen), "", functools.partial(switched, setter, True, False))


@advice("D03", "channels_last", numerics=Numerics.ROUNDING)
def channels_last(seen: Seen) -> Iterator[Finding]:
    """Look for convolutions whose inputs are not in that order."""
    others = {
        module
        for module, use in seen.uses.items()
        if isinstance(module, CONVOLUTIONS) and len(use.shape) == 4 and not use.channels_last
    }
    for model in seen.trained():
        if not others.isdisjoint(model.modules()):
            change = functools.partial(_convert, model, seen.optimizers)
            what = "model.to(memory_format=channels_last)"
            yield Finding(seen.line_of(model), what, change)


def _convert(model: nn.Module, optimizers: Sequence[Optimizer]) -> Undo:
    _arrange(model, optimizers, torch.channels_last)

    def convert(_: nn.Module, arguments: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(
            one.contiguous(memory_format=torch.channels_last)
            if isinstance(one, torch.Tensor) and one.ndim == 4
            else one
            for one in arguments
        )

    hook = model.register_forward_pre_hook(convert)

    def undo() -> None:
        hook.remove()
        _arrange(model, optimizers, torch.contiguous_format)

    return undo


def _arrange(
    model: nn.Module, optimizers: Sequence[Optimizer], memory_format: torch.memory_format
) -> None:
    """Change the order of memory of weights, gradients and states of optimisers."""
    # Gradients too; a model may have a method `to` of its own.
    nn.Module.to(model, memory_format=memory_format)  # type: ignore[call-overload]
    for parameter in model.parameters():
        for state in (optimizer.state.get(parameter, {}) for optimizer in optimizers):
            for name, value in state.items():
                if parameter.ndim == 4 and getattr(value, "shape", ()) == parameter.shape:
                    state[name] = value.contiguous(memory_format=memory_format)


def _to_compile(seen: Seen, mode: str | None) -> Iterator[Finding]:
    given = f', mode="{mode}"' if mode else ""
    for model in seen.trained() if not seen.is_compiled else ():
        change = functools.partial(_compile, model, mode, [])
        what = f"torch.compile({type(model).__name__}{given})"
        yield Finding(seen.line_of(model), what, change)


def _compile(model: nn.Module, mode: str | None, compiled: list[Any]) -> Undo:
    """Compile a model the first time, and use that again later.

    A function of ours calls it: torch compiles no frame that begins in its own modules, so
    `model.compile()` leaves an `nn.Sequential` as it is.
    """
    if not compiled:

        def call(*arguments: Any, **options: Any) -> Any:
            return model._call_impl(*arguments, **options)  # type: ignore[no-untyped-call]

        compiled.append(torch.compile(call, mode=mode))
    return switched(functools.partial(setattr, model, "_compiled_call_impl"), compiled[0], None)


_GRAPHS = "reduce-overhead"
_compiles = functools.partial(advice, numerics=Numerics.ROUNDING)

compiled = _compiles("D05", "torch.compile")(functools.partial(_to_compile, mode=None))
recorded_launches = _compiles("D23", f'torch.compile(mode="{_GRAPHS}")', gpu_only=True)(
    functools.partial(_to_compile, mode=_GRAPHS)
)


attention_by_hand = advice(
    "D58",
    "F.scaled_dot_product_attention",
    numerics=Numerics.ROUNDING,
    why_not="the script has to call it",
)(lambda seen: at(seen.attention))


@advice("D08", "bias=False before a batch normalisation", numerics=Numerics.ROUNDING)
def bias_before_norm(seen: Seen) -> Iterator[Finding]:
    """Look for layers whose output a batch normalisation takes, and nothing else."""
    for layer, _ in _normalised(seen.uses):
        if layer.bias is not None:
            change = functools.partial(_drop, layer, seen.optimizers)
            yield Finding(seen.line_of(layer), f"{type(layer).__name__}(bias=False)", change)


def _normalised(uses: Mapping[nn.Module, ModuleUse]) -> Iterator[tuple[Any, _BatchNorm]]:
    """Yield layers whose output a batch normalisation takes, and nothing else, with that."""
    for use in uses.values():
        if isinstance(use.module, _BatchNorm) and _is_only_user(use, uses, LINEAR):
            yield use.made_by, use.module


def _is_only_user(use: ModuleUse, uses: Mapping[nn.Module, ModuleUse], kinds: Any) -> bool:
    """Return whether a module alone takes the output of a layer, which has one of `kinds`."""
    layer = use.made_by
    return isinstance(layer, kinds) and layer in uses and uses[layer].users == 1


def _drop(layer: Any, optimizers: list[Optimizer]) -> Undo:
    bias, undo = layer.bias, ExitStack()
    undo.callback(layer.register_parameter, "bias", bias)
    layer.register_parameter("bias", None)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if any(p is bias for p in group["params"]):
                undo.callback(group.update, params=group["params"])
                group["params"] = [p for p in group["params"] if p is not bias]
    return undo.close


@advice("D15", "inplace=True")
def in_place_activation(seen: Seen) -> Iterator[Finding]:
    """Look for activations after layers whose backward pass needs no output of theirs."""
    for use in seen.uses.values():
        module = use.module
        copies = isinstance(module, ACTIVATIONS) and not getattr(module, "inplace", True)
        if copies and _is_only_user(use, seen.uses, (*LINEAR, _BatchNorm)):
            change = functools.partial(replaced, module, "inplace", True)
            what = f"{type(module).__name__}(inplace=True)"
            yield Finding(seen.line_of(module), what, change)


@advice(
    "D16",
    "fold normalisations into convolutions, in a copy for validation",
    numerics=Numerics.ROUNDING,
    phase="evaluate",
)
def folded_normalisation(seen: Seen) -> Iterator[Finding]:
    """Look for convolutions whose output a normalisation takes, in a validation."""
    known: set[nn.Module] = set()  # a model may be a part of another, which is called too
    for model in seen.models:
        inside = set(model.modules()) - known
        pairs = [
            (layer, norm)
            for layer, norm in _normalised(seen.uses_in_validation)
            if isinstance(layer, CONVOLVES) and layer in inside and norm in inside
        ]
        known |= {layer for layer, _ in pairs}
        if pairs:
            what = f"fold {len(pairs)} normalisations of {type(model).__name__} into convolutions"
            change = functools.partial(_fold, model, pairs)
            yield Finding(seen.line_of(model), what, change)


def _fold(model: nn.Module, pairs: list[tuple[Any, _BatchNorm]]) -> Undo:
    folded: dict[nn.Module, nn.Module] = {}
    for layer, norm in pairs:
        folded[layer], folded[norm] = fuse_conv_bn_eval(layer, norm), nn.Identity()
    undo = ExitStack()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child in folded:
                setattr(module, name, folded[child])
                undo.callback(setattr, module, name, child)
    return undo.close


@advice("D35", "checkpoint repeated blocks", saves="memory")
def activation_checkpointing(seen: Seen) -> Iterator[Finding]:
    """Look for models with many blocks of one class, without checkpoints."""
    if seen.is_compiled or seen.called("checkpoint"):
        return
    for model in seen.trained():
        for name, blocks in _blocks(model, seen).items():
            if len(blocks) >= LEAST_BLOCKS:
                what = f"checkpoint {len(blocks)} blocks of {name}"
                yield Finding(seen.line_of(model), what, functools.partial(_checkpoint, blocks))


def _blocks(model: nn.Module, seen: Seen) -> dict[str, list[nn.Module]]:
    """Return the outermost blocks that stand in a row with others of their class."""
    found: dict[str, list[nn.Module]] = {}
    inside: set[nn.Module] = set()
    for row in model.modules():
        if row in inside or not isinstance(row, (nn.Sequential, nn.ModuleList)):
            continue
        counts = Counter(map(type, row))
        for block in row:
            is_repeated = counts[type(block)] > 1 and next(block.children(), None) is not None
            if is_repeated and not seen.uses.keys().isdisjoint(block.modules()):
                found.setdefault(type(block).__name__, []).append(block)
                inside.update(block.modules())
    return found


def _checkpoint(blocks: list[nn.Module]) -> Undo:
    undo = ExitStack()
    for block in blocks:
        undo.callback(replaced(block, "forward", _checkpointed(block, block.forward)))
    return undo.close


def _checkpointed(block: nn.Module, forward: Any) -> Any:
    @functools.wraps(forward)
    def checkpointed(*arguments: Any, **options: Any) -> Any:
        if not block.training or not torch.is_grad_enabled():
            return forward(*arguments, **options)
        return checkpoint(forward, *arguments, use_reentrant=False, **options)

    return checkpointed
