"""Gibbs sampling: blocks of sites, discrete ones among them, each with an update of its own."""
