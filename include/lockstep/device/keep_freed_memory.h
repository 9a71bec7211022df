// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep {

/// Keeps freed memory of the CPU for the next step of training rather than give it back to the kernel, which
/// would have to clear every page of it again.
///
/// glibc's malloc: blocks of up to 32 MiB come from the heap, of which up to 1 GiB stays with the process.
/// Tensors of 16 MiB and more: LibTorch's allocator for the CPU cuts them from blocks in huge pages. Of idle
/// ones up to 2 GiB stay, but no more than an eighth of the memory that was available at the first call.
///
/// Does nothing when the user has decided: one of the variables MALLOC_MMAP_THRESHOLD_, MALLOC_MMAP_MAX_,
/// MALLOC_TRIM_THRESHOLD_ or MALLOC_TOP_PAD_ is set, or LD_PRELOAD names jemalloc, tcmalloc or mimalloc.
/// Leaves malloc alone with another C library, and tensors with another allocator than LibTorch's own
/// (c10::SetCPUAllocator) and under AddressSanitizer. Blocks know no NUMA nodes: bind processes to one each.
///
/// For the whole process; from one thread, before others allocate tensors.
void keep_freed_memory();

}  // namespace lockstep
