"""Modules of PyTorch, Pyro and NumPyro whose names are in rooms here: `distributions.independent`.

Programs say ``from torch.distributions.independent import Independent``, or ``from
pyro.infer.mcmc.api import MCMC``. Which files a library is cut into is its own affair, so those
modules are not files here: a module of that name is made when it is asked for, and has what the
room has. What the room has not, it tells of as always.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from probtorch.core.absent import asked_by_import
from probtorch.errors import UnknownImportError, UnknownNameError

__all__ = ["MODULES"]

# By room here the modules there; in the order of PyTorch, Pyro, NumPyro.
_THEIRS = {
    "probtorch.distributions": (
        "binomial cauchy chi2 continuous_bernoulli dirichlet exp_family exponential fishersnedecor "
        "generalized_pareto geometric gumbel half_cauchy half_normal independent inverse_gamma "
        "kumaraswamy laplace lkj_cholesky log_normal logistic_normal lowrank_multivariate_normal "
        "mixture_same_family multinomial negative_binomial one_hot_categorical pareto poisson "
        "relaxed_bernoulli relaxed_categorical studentT transformed_distribution weibull "
        "affine_beta asymmetriclaplace avf_mvn delta diag_normal_mixture "
        "diag_normal_mixture_shared_cov extended folded gaussian_scale_mixture "
        "grouped_normal_normal hmm improper_uniform log_normal_negative_binomial logistic "
        "multivariate_studentt nanmasked omt_mvn one_one_matching one_two_matching "
        "ordered_logistic projected_normal rejector relaxed_straight_through "
        "sine_bivariate_von_mises sine_skewed softlaplace spanning_tree stable_log_prob "
        "torch torch_distribution unit von_mises_3d zero_inflated "
        "censored conjugate continuous copula discrete"
    ),
    "probtorch.distributions.transforms": (
        "affine_autoregressive affine_coupling basic batchnorm block_autoregressive "
        "discrete_cosine generalized_channel_permute haar householder lower_cholesky_affine "
        "matrix_exponential neural_autoregressive normalize ordered permute planar polynomial "
        "power radial simplex_to_ordered softplus spline spline_autoregressive spline_coupling "
        "sylvester unit_cholesky"
    ),
    "probtorch.infer": (
        "abstract_infer csis elbo energy_distance importance predictive renyi_elbo rws smcfilter "
        "svgd svi trace_elbo trace_mean_field_elbo trace_mmd trace_tail_adaptive_elbo "
        "traceenum_elbo tracegraph_elbo tracetmc_elbo barker ensemble hmc hmc_gibbs mixed_hmc sa"
    ),
    "probtorch.infer.mcmc": "api hmc nuts",
    "probtorch.infer.autoguide": "guides structured",
    "probtorch.optim": (
        "adadelta adagrad adamax adamw asgd radam adagrad_rmsprop clipped_adam dct_adam optim "
        "pytorch_optimizers"
    ),
    "probtorch.nn": (
        "modules modules.activation modules.adaptive modules.batchnorm modules.channelshuffle "
        "modules.container modules.conv modules.distance modules.dropout modules.flatten "
        "modules.fold modules.instancenorm modules.lazy modules.linear modules.loss modules.module "
        "modules.normalization modules.padding modules.pixelshuffle modules.pooling modules.rnn "
        "modules.sparse modules.transformer modules.upsampling auto_reg_nn dense_nn"
    ),
    "probtorch.nn.utils": "clip_grad convert_parameters weight_norm",
    "probtorch.autograd": "anomaly_mode forward_ad grad_mode gradcheck",
    "probtorch.utils.data": "dataloader distributed",
    "probtorch.poutine": (
        "block_messenger condition_messenger do_messenger equalize_messenger escape_messenger "
        "infer_config_messenger lift_messenger markov_messenger mask_messenger plate_messenger "
        "reparam_messenger replay_messenger scale_messenger seed_messenger subsample_messenger "
        "substitute_messenger trace_messenger trace_struct uncondition_messenger handlers"
    ),
    "probtorch.contrib.gp.models": "gplvm gpr sgpr vgp vsgp",
    "probtorch.contrib.gp.kernels": "brownian coregionalize static",
    "probtorch.contrib.forecast": "evaluate forecaster",
    "probtorch.contrib.oed": "eig",
    "probtorch": "primitives params",
}
# By the full name of a module there, with our name in front, the room that has what it had.
MODULES = {f"{room}.{name}": room for room, names in _THEIRS.items() for name in names.split()}
# Rooms that go by another name there.
MODULES["probtorch.contrib.easyguide"] = "probtorch.infer"
MODULES["probtorch.contrib.autoguide"] = "probtorch.infer.autoguide"
MODULES["probtorch.settings"] = "probtorch.config"
MODULES["probtorch.infer.inspect"] = "probtorch.viz"


class _Room(ModuleType):
    """A package whose public names stay when a module of the same name is imported: as in Pyro,
    where `transforms.spline` is the function though there is a module of that name.
    """

    def __setattr__(self, name: str, value: object) -> None:
        made_here = isinstance(value, ModuleType) and value.__name__ in MODULES
        if not (made_here and _has_other(self, name)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[object, ...]:
        # What travels by value holds modules; those of a class of their own have to say how.
        return importlib.import_module, (self.__name__,)


def _has_other(package: ModuleType, name: str) -> bool:
    """Whether a package has something of that name that is no module."""
    if name in getattr(package, "__all__", ()):
        return True
    found = getattr(package, name, None)  # which imports it, where that is late
    return found is not None and not isinstance(found, ModuleType)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked by Python for modules that are no files; makes those of the table."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in MODULES:
            return None
        holds_others = any(name.startswith(f"{fullname}.") for name in MODULES)
        return importlib.util.spec_from_loader(fullname, self, is_package=holds_others)

    def exec_module(self, module: ModuleType) -> None:
        room = importlib.import_module(MODULES[module.__name__])
        module.__doc__ = f"What was in a module of another library: see `{room.__name__}`."

        def fetch(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            try:
                return getattr(room, name)
            except UnknownNameError as error:
                if not asked_by_import(sys._getframe(1)):
                    raise
                raise UnknownImportError(
                    f"cannot import name {name!r} from {module.__name__!r}",
                    expected=error.expected,
                    got=error.got,
                    fix=error.fix,
                ) from error

        package, _, name = module.__name__.rpartition(".")
        parent = sys.modules[package]
        if _has_other(parent, name) and type(parent) is ModuleType:
            parent.__class__ = _Room
        names = list(getattr(room, "__all__", [n for n in dir(room) if not n.startswith("_")]))
        module.__dict__.update(__getattr__=fetch, __dir__=lambda: dir(room), __all__=names)


sys.meta_path.append(_Finder())
