"""What arrays are to a kernel: posed as matrices or stacks, without a copy or with one.

Operands that TMA cannot read are copied here too: `packing` allocates memory and launches a kernel.
"""
