"""Serves rounds of FedAvg in PyTorch, written as a user without a framework would.

Methods: `loop`, one client after the other; `vmap`, all clients at once, padded to the largest.
"""

import common
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy, max_pool2d, relu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def logits(weights, x):
    """Computes the logits of images `uint8[batch, channels, height, width]`."""
    x = x.float() / 255
    *hidden, (kernel, bias) = zip(weights[::2], weights[1::2], strict=True)
    for own_kernel, own_bias in hidden:
        if own_kernel.dim() == 4:
            x = max_pool2d(relu(torch.nn.functional.conv2d(x, own_kernel, own_bias)), 2)
        else:
            x = relu(x.flatten(1) @ own_kernel + own_bias)
    return x.flatten(1) @ kernel + bias


def initial_weights(network):
    """Returns the shared initial weights in PyTorch's order of axes."""
    weights, channels = [], None
    for weight in common.initial_weights(network):
        if weight.ndim == 4:
            channels = weight.shape[3]
            weight = weight.transpose(3, 2, 0, 1)
        elif weight.ndim == 2 and channels is not None:  # follows the last convolution
            by_pixel = weight.reshape(-1, channels, weight.shape[1])
            weight, channels = by_pixel.transpose(1, 0, 2).reshape(weight.shape), None
        weights.append(torch.from_numpy(weight.copy()).to(DEVICE))
    return weights


def examples(work):
    """Returns the images with channels first, and the labels of each client."""
    x, y = common.client_data(work)
    return [images.transpose(0, 3, 1, 2) for images in x], y


def on_device(array):
    return torch.from_numpy(array.copy()).to(DEVICE)


def loop(work):
    x, y = (list(map(on_device, arrays)) for arrays in examples(work))
    total = sum(map(len, y))
    server = initial_weights(work.network)

    def one_round():
        nonlocal server
        mean, loss_sum = [torch.zeros_like(w) for w in server], torch.zeros((), device=DEVICE)
        for own_x, own_y in zip(x, y, strict=True):
            weights = [w.clone().requires_grad_() for w in server]
            optimizer = torch.optim.SGD(weights, work.learning_rate)
            for _ in range(work.epochs):
                for rows in torch.randperm(len(own_y), device=DEVICE).split(work.batch_size):
                    optimizer.zero_grad()
                    loss = cross_entropy(logits(weights, own_x[rows]), own_y[rows])
                    loss.backward()
                    optimizer.step()
                    loss_sum += len(rows) * loss.detach()
            for m, w in zip(mean, weights, strict=True):
                m += w.detach() * (len(own_y) / total)
        server = mean
        return loss_sum.item() / (total * work.epochs)

    return one_round


def stacked(work):
    x, y = examples(work)
    sizes = torch.tensor(list(map(len, y)), device=DEVICE)
    x, y = on_device(common.padded(x)), on_device(common.padded(y))
    clients, length = y.shape
    client, row = torch.arange(clients, device=DEVICE)[:, None], torch.arange(length, device=DEVICE)
    is_padding = (row >= sizes[:, None]).float()
    shares = (sizes / sizes.sum()).float()
    server = initial_weights(work.network)

    def loss(weights, x, y, counts):
        losses = counts * cross_entropy(logits(weights, x), y, reduction="none")
        return losses.sum() / counts.sum().clamp(min=1), losses.sum()

    gradients = vmap(grad(loss, has_aux=True))

    def one_round():
        nonlocal server
        weights, loss_sum = [w.expand(clients, *w.shape) for w in server], 0.0
        for _ in range(work.epochs):
            # Padding rows come last.
            order = torch.argsort(is_padding + torch.rand(clients, length, device=DEVICE), dim=1)
            for rows in order.split(work.batch_size, dim=1):
                counts = 1 - is_padding[client, rows]
                slopes, losses = gradients(weights, x[client, rows], y[client, rows], counts)
                weights = [w - work.learning_rate * g for w, g in zip(weights, slopes, strict=True)]
                loss_sum = loss_sum + losses.sum()
        server = [torch.tensordot(shares, w, 1) for w in weights]
        return loss_sum.item() / (sizes.sum().item() * work.epochs)

    return one_round


def main():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    methods = {"loop": loop, "vmap": stacked}
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    common.serve(lambda name, work: methods[name](work), {"torch": torch.__version__}, device)


if __name__ == "__main__":
    main()
