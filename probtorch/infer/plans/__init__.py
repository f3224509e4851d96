"""`fit`: a look at the model, and the engine that suits it."""
