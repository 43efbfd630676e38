"""Which kernels a run may trust on this machine: each is compared with its reference once."""

from gnntrain.selfcheck.choice import kernel_choice as kernel_choice
