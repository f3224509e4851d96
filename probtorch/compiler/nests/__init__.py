"""Loop nests: what a graph is lowered to, and where its values lie."""
