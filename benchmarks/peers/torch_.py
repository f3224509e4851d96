"""PyTorch: the peer of the eager suite."""

import itertools

DISTRIBUTIONS = ("torch",)


def tensor_library():
    import torch

    torch.set_num_threads(1)
    return torch


def networks():
    """Return encoder and decoder of the svi suite, as modules."""
    from torch import nn

    from benchmarks.svi import HIDDEN, LATENT, PIXELS

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(PIXELS, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, HIDDEN), nn.Softplus()
            )
            self.loc, self.log_scale = nn.Linear(HIDDEN, LATENT), nn.Linear(HIDDEN, LATENT)

        def forward(self, x):
            h = self.body(x)
            return self.loc(h), self.log_scale(h).exp()

    decoder = nn.Sequential(
        *(nn.Linear(LATENT, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, HIDDEN), nn.Softplus()),
        nn.Linear(HIDDEN, PIXELS),
    )
    return Encoder(), decoder


def autoencoder(data):
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    from benchmarks.svi import RATE

    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder, decoder = networks()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=RATE)
    rows = itertools.cycle([torch.tensor(x) for x in data])

    def step():
        x = next(rows)
        loc, scale = encoder(x)
        z = loc + scale * torch.randn_like(loc)
        divergence = 0.5 * (loc**2 + scale**2 - 1.0 - 2.0 * scale.log()).sum()
        loss = divergence + binary_cross_entropy_with_logits(decoder(z), x, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
