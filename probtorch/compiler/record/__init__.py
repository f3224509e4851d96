"""Recording: the graph that one run writes, and its loops rolled up."""
