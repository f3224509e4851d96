"""Families that random models draw their sites from, as texts of how they are called.

See model_texts.py. By support of what has no data; with values inside of it, of data; those that
have few values; those that can be decentred. In a text R stands for a real number, P for a
positive one, U for one in (0, 1), V for a vector, Q for a column beside one, S and A for weights,
L for a matrix, G for a number.
"""

__all__ = ["DATA", "FINITE", "LATENT", "LOC_SCALE", "SHARES", "TRIANGLE"]

TRIANGLE = "const([[1.0, 0.0, 0.0], [0.5, 0.75, 0.0], [-0.25, 0.5, 1.25]])"
REAL = [
    "Normal(R, P)", "Normal(R, P)", "Normal(R, P)", "Laplace(R, P)", "Logistic(R, P)",
    "Gumbel(R, P)", "Cauchy(R, P)", "StudentT(2.5, R, P)", "StudentT(P, R, P)",
    "SkewNormal(R, P, R)", "Uniform(-2.0, 1.5)", "TruncatedNormal(R, P, -1.5, 2.0)",
    "MixtureSameFamily(Categorical(S), Normal(V, Q))",
    "TransformedDistribution(Normal(R, P), [AffineTransform(0.25, -1.5)])",
]  # fmt: skip
POSITIVE = [
    "LogNormal(R, P)", "HalfNormal(P)", "HalfCauchy(P)", "Exponential(P)", "Gamma(P, P)",
    "InverseGamma(P, P)", "Weibull(P, P)", "Rayleigh(P)", "Pareto(P, P)",
    "TransformedDistribution(Normal(R, P), [ExpTransform()])",
]  # fmt: skip
UNIT = ["Beta(P, P)", "Uniform(0.0, 1.0)", "Uniform(0.0, U)"]
VECTOR = [
    "Normal(V, Q).to_event(1)", "Normal(0.5, 1.0).expand([3]).to_event(1)",
    "MultivariateNormal(V, scale_tril=L)", "Laplace(V, 0.75).to_event(1)",
]  # fmt: skip
SIMPLEX = ["Dirichlet(A)"]
ORDERED = ["TransformedDistribution(Normal(V, 0.75).to_event(1), [OrderedTransform()])"]
MATRIX = ["Normal(0.25, 1.5).expand([2, 3]).to_event(2)"]
CORRELATION = ["LKJCholesky(2, G)"]
LATENT = {
    "real": REAL, "positive": POSITIVE, "unit": UNIT, "vector": VECTOR, "simplex": SIMPLEX,
    "ordered": ORDERED, "matrix": MATRIX, "correlation": CORRELATION,
}  # fmt: skip
# How often each kind is drawn.
SHARES = {
    "real": 6, "positive": 3, "unit": 2, "vector": 2, "simplex": 1, "ordered": 1, "matrix": 0.5,
    "correlation": 0.5,
}  # fmt: skip
# Data: family and values that are inside of its support.
DATA = [
    ("Normal(R, P)", "real"), ("Normal(R, P)", "real"), ("StudentT(4.0, R, P)", "real"),
    ("Cauchy(R, P)", "real"), ("Gumbel(R, P)", "real"), ("VonMises(R, P)", "real"),
    ("MixtureSameFamily(Categorical(S), Normal(V, Q))", "real"), ("LogNormal(R, P)", "positive"),
    ("Gamma(P, P)", "positive"), ("Exponential(P)", "positive"), ("Weibull(P, P)", "positive"),
    ("Beta(P, P)", "unit"), ("Poisson(P)", "count"), ("Geometric(U)", "count"),
    ("NegativeBinomial(4.0, U)", "count"), ("Binomial(5, U)", "count"),
    ("BetaBinomial(P, P, 5)", "count"), ("ZeroInflatedPoisson(P, gate=U)", "count"),
    ("Bernoulli(U)", "bit"), ("Bernoulli(logits=R)", "bit"), ("Categorical(S)", "face"),
    ("Categorical(logits=V)", "face"), ("OrderedLogistic(R, const([-0.5, 0.75]))", "face"),
    ("Normal(V, Q).to_event(1)", "vector"), ("MultivariateNormal(V, scale_tril=L)", "vector"),
]  # fmt: skip
FINITE = [
    ("Bernoulli(U)", "bit", 2), ("Bernoulli(logits=R)", "bit", 2), ("Categorical(S)", "face", 3),
    ("Categorical(logits=V)", "face", 3), ("Binomial(2, U)", "bit", 3),
]  # fmt: skip
# Families that `LocScaleReparam` knows.
LOC_SCALE = ["Normal(R, P)", "Laplace(R, P)", "Logistic(R, P)", "Cauchy(R, P)", "Gumbel(R, P)"]
