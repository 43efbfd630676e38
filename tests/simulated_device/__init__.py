"""A GPU that is none: torch's spare device type, whose tensors keep their numbers in host memory.

    from tests.simulated_device import present, watched

    with present(), watched() as traffic:   # the machine's accelerator is `torch.device("sim")`
        main(["dataset=cora"])              # trains on it
    assert not traffic.waits_in("training/trainer.py:_train")

Operators compute on the CPU, so results are real, and equal to the CPU's. As on a GPU, an operator
on tensors of two devices is an error, host memory is copied explicitly, only pinned memory without
a wait. `watched` says which lines made the host wait or copied.

A device that is registered, but not `present`, is invisible to gnntrain: other tests of the process
run on the CPU. On a machine with a real GPU it is not registered, since torch knows one accelerator
a process: the tests that need it are skipped there.
"""

import torch

from tests.simulated_device.module import device_module as device_module
from tests.simulated_device.registration import present as present
from tests.simulated_device.registration import register
from tests.simulated_device.registration import register_present as register_present
from tests.simulated_device.tensor import SimulatedTensor as SimulatedTensor
from tests.simulated_device.traffic import Traffic as Traffic
from tests.simulated_device.traffic import watched as watched

if not torch.cuda.is_available():
    register()
