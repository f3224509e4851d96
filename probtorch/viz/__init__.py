"""Pictures of graphs: of the tape behind a tensor, and of a probabilistic model.

Both are text in Graphviz's language, `Dot`, which any viewer of it draws; where Graphviz itself is
installed, `Dot.render` and notebooks do.
"""

from probtorch.viz.dot import Dot
from probtorch.viz.models import get_dependencies, get_model_relations, render_model
from probtorch.viz.tape import make_dot

__all__ = ["Dot", "get_dependencies", "get_model_relations", "make_dot", "render_model"]
