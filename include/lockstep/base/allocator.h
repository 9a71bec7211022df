// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep {

/// Tells glibc's malloc to keep freed memory for the next step of training rather than give it back to the
/// kernel, which would have to clear every page of it again: blocks of up to 32 MiB come from the heap, and
/// up to 1 GiB stays with the process. Does nothing when one of the variables MALLOC_MMAP_THRESHOLD_,
/// MALLOC_TRIM_THRESHOLD_ or MALLOC_TOP_PAD_ is set (the user has decided), or with another C library.
/// For the whole process; from one thread, before others allocate much.
void keep_freed_memory();

}  // namespace lockstep
