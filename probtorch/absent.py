"""What stands in for names of other libraries that the front door has not: `INSTEAD`.

Other rooms have a table of their own. The reasons are in docs/reference/differences.md.
"""

from __future__ import annotations

__all__ = ["INSTEAD"]

_SPARSE = "there are no sparse tensors: index_add and gather work on rows"
_PLATE = "write `with plate(name, size):`; for i in plate(name, size) is the loop"
_SOURCE = "leave it out: what is computed where is said by device=, and NumPy's arrays are welcome"

_DATA = "data are arguments of the model: call it, or Predictive, with others"

INSTEAD = {
    # PyTorch's.
    "bfloat16": "there is no bfloat16: use float32, or float16 for less memory",
    "export": "onnx.export writes a network for other programs",
    "fx": "compile(fn).explain() shows the graph of a function",
    "generic": "Pyro's own names are at the front door; there is one backend",
    "hub": "nothing here reads from the network: load a state_dict with load(path)",
    "jit": "compile(fn) compiles functions and modules by recording them",
    "multiprocessing": "DataLoader(num_workers=), threads, or Python's multiprocessing with arrays",
    "nested": "there are no nested tensors: nn.utils.rnn pads sequences, or packs them",
    "quantization": "there are no quantised tensors",
    "sparse": _SPARSE,
    "sparse_coo_tensor": _SPARSE,
    "version": "__version__ is the version; cuda.is_available() says whether there is a GPU",
    # Pyro's.
    "barrier": "leave it out: it is for Funsor's backend, and statements here run as they come",
    "iarange": _PLATE,
    "irange": _PLATE,
    # Stan's and TFP's.
    "algebra_solver": "numerics.root(f, x0)",
    "find_root_chandrupatla": "numerics.bracketed_root(f, low, high)",
    "integrate_1d": "numerics.integral(f, low, high)",
    "solve_newton": "numerics.root(f, x0)",
    "solve_powell": 'numerics.root(f, x0, method="powell")',
    # PyMC's.
    "Data": _DATA,
    "Deterministic": "deterministic(name, value)",
    "Minibatch": "plate(name, size, subsample_size=n)",
    "Model": "a model is a function with sample statements; data are its arguments",
    "MutableData": _DATA,
    "Potential": "factor(name, log_density)",
    "find_MAP": "infer.SVI with an infer.AutoDelta guide, or infer.LaplaceApproximation(model)",
    "sample_posterior_predictive": "infer.Predictive(model, mcmc.get_samples())(*args)",
    "sample_prior_predictive": "infer.Predictive(model, num_samples=500)(*args)",
    "set_data": _DATA,
    # NumPyro's and JAX's.
    "compat": "leave it out: Pyro's names are at the front door",
    "device_get": "x.numpy() is the array of a tensor",
    "enable_x64": "leave it out: inference computes in float64; "
    "set_default_dtype(float64) is for tensors of your own",
    "grad": "func.grad(fn) differentiates a function, x.grad is what backward() left",
    "hessian": "func.hessian(fn)",
    "jacfwd": "func.jacfwd(fn)",
    "jacrev": "func.jacrev(fn)",
    "jvp": "func.jvp(fn, primals, tangents)",
    "lax": "functions are at the front door; scan(f, init, xs) is a statement of models",
    "numpy": "functions of arrays are at the front door: probtorch.exp, probtorch.where",
    "prng_key": "leave it out: draws of a model have their generator from handlers.seed, "
    "manual_seed, or MCMC(seed=)",
    "set_host_device_count": "leave it out: chains of MCMC(num_chains=) run in threads",
    "set_platform": _SOURCE,
    "value_and_grad": "func.value_and_grad(fn)",
    "vjp": "func.vjp(fn, *primals)",
}
