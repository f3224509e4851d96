"""`describe`: what a compiled function became, as text.

For each path: its guards and its graph with the user's lines, the loop nests with their ops (one
line per nest is one pass over memory), library calls, loops and branches, the memory it needs, and
how long compiling took.
"""

import os

from probtorch.compiler.loops import Branch, Call, Group, Guard, Loop

__all__ = ["describe"]

# Nodes listed per path; a longer graph is cut.
MAX_NODES = 400


def describe(name, paths, reason):
    """Return the explanation of a function with `paths`, pairs of (graph, program), and why it runs
    eagerly, if it does.
    """
    lines = [f"{name}: {len(paths)} compiled path{'s' if len(paths) != 1 else ''}"]
    if reason is not None:
        text, location = reason
        lines.append(f"runs eagerly: {text}" + (f" (at {location})" if location else ""))
    for k, (graph, program) in enumerate(paths):
        plan, seconds = program.plan, program.seconds
        total = 1e3 * sum(seconds.values())
        source = "read from the disk cache" if program.from_cache else "compiled"
        lines.append(
            f"path {k}: {len(graph.nodes)} ops, {source} in {total:.1f} ms; "
            f"arena {plan.arena} bytes, "
            f"{plan.scalars} scalars, {len(plan.consts)} constant arrays"
        )
        lines += [f"  {note}" for note in getattr(program, "notes", ())]
        for i, (value, expected, node) in enumerate(graph.guards):
            lines.append(f"  guard {i}: {value!r} is {expected!r}{_at(node)}")
        lines.append("  loop nests:")
        lines += _block(program.lowering.block, "    ")
        lines.append(f"  graph of {graph.inputs}:")
        lines += [f"    {node!r}{_at(node)}" for node in graph.nodes[:MAX_NODES]]
        if len(graph.nodes) > MAX_NODES:
            lines.append(f"    ... and {len(graph.nodes) - MAX_NODES} more")
        lines.append(f"  outputs: {graph.outputs}")
    return "\n".join(lines)


def _at(node):
    if not node.location:
        return ""
    return f"  # {os.path.basename(node.location[0])}:{node.location[1]}"


def _block(block, indent):
    lines = []
    for statement in block.statements:
        if isinstance(statement, Group):
            if statement.items:
                lines.append(f"{indent}{_group(statement)}")
        elif isinstance(statement, Call):
            lines.append(f"{indent}call {statement.name}")
        elif isinstance(statement, Guard):
            lines.append(f"{indent}check guard {statement.index}")
        elif isinstance(statement, Loop):
            lines.append(f"{indent}while")
            lines += _block(statement.test, indent + "  ")
            lines.append(f"{indent}do")
            lines += _block(statement.body, indent + "  ")
        elif isinstance(statement, Branch):
            lines.append(f"{indent}if")
            lines += _block(statement.yes, indent + "  ")
            lines.append(f"{indent}else")
            lines += _block(statement.no, indent + "  ")
    return lines


def _group(group):
    names = [item.node.name if item.node is not None else item.kind for item in group.items]
    shape = "x".join(map(str, group.domain)) or "scalar"
    return f"nest over {shape}: {' '.join(names)}"
