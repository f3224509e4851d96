"""Renderers: from the compiler's loop nests to LLVM IR and CUDA text."""
