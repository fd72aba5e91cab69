"""Small tensors to a device and back without waiting for what the device is doing."""

import numpy as np
import torch


def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """On CUDA through pinned memory, queued behind what runs. On the CPU `array` itself is the tensor's memory."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def download(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor that is filled when the device comes to it: to be read only after an event recorded later."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
