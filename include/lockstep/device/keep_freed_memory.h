// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep {

/// Keeps freed memory of the CPU for the next step of training rather than give it back to the kernel, which
/// would have to clear every page of it again.
///
/// glibc's malloc: blocks of up to 32 MiB come from the heap, of which up to 1 GiB stays with the process.
/// Tensors of 16 MiB and more: LibTorch's allocator for the CPU hands out blocks in huge pages that are
/// used again for tensors of the same size; up to 2 GiB of idle ones stay.
///
/// Does nothing when one of the variables MALLOC_MMAP_THRESHOLD_, MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_ or
/// MALLOC_TOP_PAD_ is set (the user has decided); leaves malloc alone with another C library, and tensors
/// with another allocator than LibTorch's own (c10::SetCPUAllocator). For the whole process; from one thread,
/// before others allocate tensors.
void keep_freed_memory();

}  // namespace lockstep
