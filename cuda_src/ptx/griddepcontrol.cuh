// Programmatic dependent launch: one function an instruction (PTX ISA, "griddepcontrol").
#pragma once
#include "ptx/types.cuh"

// Lets the next kernel of the stream start its CTAs as soon as there is room, if it was launched to do so.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Waits until the kernel before has ended and its writes can be seen; at once where this one was not launched early.
__device__ __forceinline__ void griddepcontrol_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
