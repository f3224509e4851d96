"""From draws back through the model: predictions, and pointwise log likelihoods."""
