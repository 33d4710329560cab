"""What arrays are to a kernel: posed as matrices or stacks, without a copy or with one."""
