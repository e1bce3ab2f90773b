from torch import nn

MODELS = {}


def register(cls):
    MODELS[cls.__name__.lower()] = cls
    return cls


@register
class Mlp(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)
