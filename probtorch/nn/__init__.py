"""Neural networks: modules with parameters, and the functions they are made of.

Read `module.py` first, then `linear.py`.
"""

from probtorch.nn import init as init
from probtorch.nn.module import Module as Module
from probtorch.nn.parameter import Buffer as Buffer
from probtorch.nn.parameter import Parameter as Parameter
