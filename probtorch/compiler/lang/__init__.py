"""The kernel language: types, nodes, one builder, and a printer for each target.

What compiled code computes is said once, by calls of a `Builder`: an op's formula, the body of a
loop nest, a routine with loops of its own. Each call makes a typed node (`nodes.py`), and the
builder's printer spells it: `llvm.py` for processors, one number or a vector of them at a time;
`cuda.py` for GPUs. `routines/` has the functions written in the language alone.
"""
