"""Movement: views change a layout; what assembles memory from pieces becomes stores."""

import numpy as np

from probtorch.compiler.nests.layout import Layout, contiguous
from probtorch.compiler.nests.lowering import lowers


@lowers("view")
def view(low, node, block):
    (v,), (out,) = node.inputs, node.outs
    root, layout = low.place(v)
    moved = layout.view(node.name, node.attrs)
    if moved is None:
        root = low.copy_layout(root, layout, block)
        moved = contiguous(v.shape).view(node.name, node.attrs)
    low.places[out.id] = (root, moved)


@lowers("to_device")
def lower_to_device(low, node, block):
    # A program runs on one device, whatever moved between devices when it was recorded.
    low.places[node.outs[0].id] = low.place(node.inputs[0])


@lowers("unslice")
def lower_unslice(low, node, block):
    (piece,), (out,) = node.inputs, node.outs
    layout = contiguous(out.shape).view("slice", {"spec": node.attrs["spec"]})
    fill = None if piece.shape == out.shape else 0
    low.assemble(out, [(piece, layout)], block, fill=fill)


@lowers("accumulate")
def lower_accumulate(low, node, block):
    (out,) = node.outs
    whole = contiguous(out.shape)
    pieces = [
        (v, whole.view("slice", {"spec": spec}))
        for v, spec in zip(node.inputs, node.attrs["specs"], strict=True)
    ]
    covered = np.zeros(out.shape, np.int32)
    for spec in node.attrs["specs"]:
        covered[
            tuple(
                slice(a, a + st * n if a + st * n >= 0 else None, st) if n else slice(0, 0)
                for a, st, n in spec
            )
        ] += 1
    once = bool((covered == 1).all())
    low.assemble(out, pieces, block, fill=None if once else 0, mode="set" if once else "add")


@lowers("diag_embed")
def lower_diag_embed(low, node, block):
    (out,) = node.outs
    layout = contiguous(out.shape).view("diagonal", {"offset": node.attrs["offset"]})
    n = node.inputs[0].shape[-1]
    layout = Layout((*layout.shape[:-1], n), layout.strides, layout.offset)
    low.assemble(out, [(node.inputs[0], layout)], block, fill=0)


@lowers("cat")
def lower_cat(low, node, block):
    (out,), dim = node.outs, node.attrs["dim"]
    pieces, at = [], 0
    for v in node.inputs:
        spec = tuple(
            (at, 1, v.shape[dim]) if i == dim else (0, 1, n) for i, n in enumerate(out.shape)
        )
        pieces.append((v, contiguous(out.shape).view("slice", {"spec": spec})))
        at += v.shape[dim]
    low.assemble(out, [p for p in pieces if 0 not in p[0].shape], block)
