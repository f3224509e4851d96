"""Pyro's and NumPyro's name for parts that have rooms of their own here."""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_beside

__all__ = [
    "autoname",
    "bart",
    "bnn",
    "cevae",
    "control_flow",
    "einstein",
    "forecast",
    "gp",
    "hsgp",
    "oed",
    "timeseries",
    "tracking",
]

# What does the work of packages that are not here.
INSTEAD = {
    "conjugate": "effects.ConjugateReparam, infer.Gibbs",
    "ecs_proxies": "infer.HMCECS has its proxies itself",
    "epidemiology": "a model with scan, or infer.ParticleGibbs and infer.ParticleFilter",
    "examples": "data sets have their libraries: nothing here reads from the network",
    "funsor": "finite sites are summed out by TraceEnum_ELBO and by NUTS; infer.infer_discrete",
    "minipyro": "handlers are small classes: effects.Handler is their base",
    "module": "effects.module and effects.random_module",
    "mue": "distributions.DiscreteHMM takes any transition and observation probabilities",
    "nested_sampling": "infer.NestedSampler",
    "randomvariable": "distributions, with transforms",
    "render": "viz.render_model",
    "stochastic_support": "infer.Importance and infer.ParticleGibbs take sites that come and go",
    "tfp": "distributions has TFP's by their names",
    "util": "tensors have methods of their own, as unsqueeze(-1)",
    "zuko": "distributions.transforms has flows; of another library's, a Distribution of its own",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(
        __name__,
        {
            "autoname": "",
            "bart": "",
            "bnn": "",
            "cevae": "",
            "control_flow": "",
            "einstein": "",
            "gp": "",
            "hsgp": "",
            "oed": "",
            "timeseries": "",
            "tracking": "",
        },
        INSTEAD,
    )
